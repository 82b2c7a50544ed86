"""From scores and labels to believable numbers: ranking metrics, adjustments, thresholds, tables."""

from fedgeo.evaluation.adjust import area_over_k, point_adjust, spans
from fedgeo.evaluation.calibration import Calibration, Rule, calibrated, moving_mean
from fedgeo.evaluation.collapse import LEAST_DISTINCT, collapse_warnings, distinct, effective_rank
from fedgeo.evaluation.events import Detection, affiliation, event_wise, range_based
from fedgeo.evaluation.metrics import Counts, count
from fedgeo.evaluation.protocols import (
    PROTOCOLS,
    Protocol,
    judge,
    protocol_table,
    validation_pot,
    validation_quantile,
)
from fedgeo.evaluation.ranking import auroc, average_precision, precision_at, trapezoid_pr
from fedgeo.evaluation.significance import (
    Paired,
    Practical,
    Ranks,
    Verdict,
    critical_difference,
    paired,
    practical,
    ranks,
    verdict,
)
from fedgeo.evaluation.summary import macro, over_seeds, per_client, pooled
from fedgeo.evaluation.tails import Pot, Spot, Tail, fit_tail, pot
from fedgeo.evaluation.thresholds import (
    OracleF1,
    Youden,
    alarms,
    calibrate,
    oracle_best_f1,
    quantile,
    target_rate,
    youden,
)
from fedgeo.evaluation.volume import Vus, buffer_length, vus

__all__ = [
    "LEAST_DISTINCT",
    "PROTOCOLS",
    "Calibration",
    "Counts",
    "Detection",
    "OracleF1",
    "Paired",
    "Pot",
    "Practical",
    "Protocol",
    "Ranks",
    "Rule",
    "Spot",
    "Tail",
    "Verdict",
    "Vus",
    "Youden",
    "affiliation",
    "alarms",
    "area_over_k",
    "auroc",
    "average_precision",
    "buffer_length",
    "calibrate",
    "calibrated",
    "collapse_warnings",
    "count",
    "critical_difference",
    "distinct",
    "effective_rank",
    "event_wise",
    "fit_tail",
    "judge",
    "macro",
    "moving_mean",
    "oracle_best_f1",
    "over_seeds",
    "paired",
    "per_client",
    "point_adjust",
    "pooled",
    "pot",
    "practical",
    "precision_at",
    "protocol_table",
    "quantile",
    "range_based",
    "ranks",
    "spans",
    "target_rate",
    "trapezoid_pr",
    "validation_pot",
    "validation_quantile",
    "verdict",
    "vus",
    "youden",
]
