"""Whole federations as one compiled JAX program, and two detectors that run on it: FedKAD and Geodesic-SVDD.

Names are loaded when first used, so that parts which need no JAX can be imported without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgeo import data as data
    from fedgeo import evaluation as evaluation
    from fedgeo import federation as federation
    from fedgeo import page as page
    from fedgeo import profile as profile
    from fedgeo import report as report
    from fedgeo import runs as runs
    from fedgeo import trees as trees
    from fedgeo.algorithms import koopman as koopman
    from fedgeo.algorithms.examples import windows as windows
    from fedgeo.algorithms.fedavg import fedavg as fedavg
    from fedgeo.algorithms.fedkad import RECOMMENDED as RECOMMENDED
    from fedgeo.algorithms.fedkad import fedkad as fedkad
    from fedgeo.algorithms.koopman import random_lift as random_lift
    from fedgeo.algorithms.local import local_only as local_only
    from fedgeo.algorithms.moments import prepare as prepare
    from fedgeo.algorithms.one_shot import one_shot as one_shot
    from fedgeo.baselines import controls as controls
    from fedgeo.estimators import PAPER as PAPER
    from fedgeo.estimators import DetectorWarning as DetectorWarning
    from fedgeo.estimators import FedKAD as FedKAD
    from fedgeo.estimators import GeodesicSVDD as GeodesicSVDD
    from fedgeo.estimators import load as load
    from fedgeo.federation import everyone as everyone
    from fedgeo.federation import fed_round as fed_round
    from fedgeo.federation import fit as fit
    from fedgeo.federation import score as score
    from fedgeo.federation import uniform as uniform
    from fedgeo.models.autoencoders import lstm_autoencoder as lstm_autoencoder
    from fedgeo.models.autoencoders import usad as usad
    from fedgeo.models.encoder import geodesic_svdd as geodesic_svdd
    from fedgeo.models.tranad import tranad as tranad
    from fedgeo.models.window_svdd import window_svdd as window_svdd
    from fedgeo.protocol import Cohort as Cohort
    from fedgeo.protocol import Examples as Examples
    from fedgeo.protocol import FedAlgorithm as FedAlgorithm
    from fedgeo.protocol import FedState as FedState
    from fedgeo.protocol import Model as Model
    from fedgeo.protocol import Rows as Rows
    from fedgeo.protocol import Series as Series
    from fedgeo.runs import evaluate as evaluate

_MODULES = {
    "controls": "fedgeo.baselines.controls",
    "data": "fedgeo.data",
    "evaluation": "fedgeo.evaluation",
    "federation": "fedgeo.federation",
    "koopman": "fedgeo.algorithms.koopman",
    "page": "fedgeo.page",
    "profile": "fedgeo.profile",
    "report": "fedgeo.report",
    "runs": "fedgeo.runs",
    "trees": "fedgeo.trees",
}
_HOMES = {
    "fedgeo.algorithms.examples": ("windows",),
    "fedgeo.algorithms.fedavg": ("fedavg",),
    "fedgeo.algorithms.fedkad": ("RECOMMENDED", "fedkad"),
    "fedgeo.algorithms.koopman": ("random_lift",),
    "fedgeo.algorithms.local": ("local_only",),
    "fedgeo.algorithms.moments": ("prepare",),
    "fedgeo.algorithms.one_shot": ("one_shot",),
    "fedgeo.estimators": ("PAPER", "DetectorWarning", "FedKAD", "GeodesicSVDD", "load"),
    "fedgeo.federation": ("everyone", "fed_round", "fit", "score", "uniform"),
    "fedgeo.models.autoencoders": ("lstm_autoencoder", "usad"),
    "fedgeo.models.encoder": ("geodesic_svdd",),
    "fedgeo.models.tranad": ("tranad",),
    "fedgeo.models.window_svdd": ("window_svdd",),
    "fedgeo.protocol": ("Cohort", "Examples", "FedAlgorithm", "FedState", "Model", "Rows", "Series"),
    "fedgeo.runs": ("evaluate",),
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted([*_MODULES, *_NAMES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
