"""How the clients of a federation of streams differ: in quantity, in features and in labels.

References:
    FedKAD (arXiv 2607.08978), section VI-A1 and Fig. 2.
"""

import numpy as np
import pandas as pd

from fedgeo.data.scaling import standardise
from fedgeo.data.streams import Streams


def heterogeneity(streams: Streams, *, validation: float = 0.15) -> pd.DataFrame:
    """What Fig. 2 of FedKAD shows, for any federation.

    Args:
        streams: with test streams where the last two columns are wanted.
        validation: share at the end of each training stream that scalers do not see.

    Returns:
        One row a client. ``train_rows``: quantity. ``feature_skew``: standard deviation over channels of the mean of
        its training rows, in units of the whole federation's training rows. ``drift``: the same of its test rows, in
        units of its own training rows; FedKAD prints this one as feature skew (0.011 to 1.96 on SMAP), though it tells
        test from training, not one client from another. ``anomaly_ratio``: of its test rows. NaN without a test.
    """
    shared, _ = standardise(streams, by="federation", clip=np.inf, validation=validation)
    own, _ = standardise(streams, by="client", validation=validation)
    nan = float("nan")
    records = {
        name: {
            "train_rows": len(x),
            "feature_skew": float(shared.train[name].mean(axis=0).std()),
            "drift": float(own.test[name].mean(axis=0).std()) if len(own.test.get(name, ())) else nan,
            "anomaly_ratio": float(streams.labels[name].mean()) if len(streams.labels.get(name, ())) else nan,
        }
        for name, x in streams.train.items()
    }
    return pd.DataFrame.from_dict(records, orient="index").rename_axis("client")
