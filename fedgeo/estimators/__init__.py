"""FedKAD and Geodesic-SVDD as estimators: fit, score, predict, calibrate, save, load.

The words are PyOD's: a higher score is more anomalous, labels are 0 (normal) and 1 (anomalous), an alarm is a score
strictly above ``threshold_``. scikit-learn's own outlier estimators have the opposite sign and predict -1 and +1.
"""

import os

from fedgeo.deploy import runtime
from fedgeo.estimators.base import DetectorWarning
from fedgeo.estimators.streams import PAPER, FedKAD
from fedgeo.estimators.tables import GeodesicSVDD

__all__ = ["PAPER", "DetectorWarning", "FedKAD", "GeodesicSVDD", "load"]


def load(path: str | os.PathLike[str]) -> FedKAD | GeodesicSVDD:
    """The estimator that was saved: ready to score, join and recalibrate; its scores are the same.

    Raises:
        FileNotFoundError: no file there.
        ValueError: no detector, another version of the format, or a damaged file.
    """
    about, arrays = runtime.read(path)
    kinds: dict[str, type[FedKAD] | type[GeodesicSVDD]] = {"fedkad": FedKAD, "geodesic-svdd": GeodesicSVDD}
    if about.get("method") not in kinds:
        raise ValueError(f"{path} holds a detector {about.get('method')!r}; want one of {', '.join(kinds)}")
    return kinds[about["method"]]._load(path, about, arrays)
