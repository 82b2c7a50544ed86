"""From scores and labels to believable numbers: ranking metrics, adjustments, thresholds, tables."""

from fedgeo.evaluation.adjust import area_over_k as area_over_k
from fedgeo.evaluation.adjust import point_adjust as point_adjust
from fedgeo.evaluation.adjust import spans as spans
from fedgeo.evaluation.metrics import Counts as Counts
from fedgeo.evaluation.metrics import count as count
from fedgeo.evaluation.ranking import auroc as auroc
from fedgeo.evaluation.ranking import average_precision as average_precision
from fedgeo.evaluation.summary import macro as macro
from fedgeo.evaluation.summary import over_seeds as over_seeds
from fedgeo.evaluation.summary import per_client as per_client
from fedgeo.evaluation.summary import pooled as pooled
from fedgeo.evaluation.thresholds import OracleF1 as OracleF1
from fedgeo.evaluation.thresholds import Youden as Youden
from fedgeo.evaluation.thresholds import alarms as alarms
from fedgeo.evaluation.thresholds import calibrate as calibrate
from fedgeo.evaluation.thresholds import oracle_best_f1 as oracle_best_f1
from fedgeo.evaluation.thresholds import quantile as quantile
from fedgeo.evaluation.thresholds import target_rate as target_rate
from fedgeo.evaluation.thresholds import youden as youden
