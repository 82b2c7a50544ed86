"""Data on the host: data sets, partitions over clients, scalers, and stacking with masks."""

from fedgeo.data import policy
from fedgeo.data.csv_files import read_csv
from fedgeo.data.downloads import download, downloadable
from fedgeo.data.heterogeneity import heterogeneity
from fedgeo.data.partitions import dirichlet, iid, natural, partition_table
from fedgeo.data.plants import fault_schedule, plants
from fedgeo.data.policy import Missing
from fedgeo.data.scaling import (
    Moments,
    Scaler,
    constant_channels,
    federated_quantiles,
    federated_robust_scaler,
    federated_scaler,
    fit_scaler,
    merge,
    moments,
    standard,
    standardise,
)
from fedgeo.data.server_metrics import observed_channels, psm, psm_pool
from fedgeo.data.stacking import stack_rows, stack_series, unstack
from fedgeo.data.streams import Streams, from_arrays, msl, smap, smd, split, temporal_split
from fedgeo.data.tables import Split, Table, adult, breast_cancer, covertype, iris, stratified_split, titanic

__all__ = [
    "Missing",
    "Moments",
    "Scaler",
    "Split",
    "Streams",
    "Table",
    "adult",
    "breast_cancer",
    "constant_channels",
    "covertype",
    "dirichlet",
    "download",
    "downloadable",
    "fault_schedule",
    "federated_quantiles",
    "federated_robust_scaler",
    "federated_scaler",
    "fit_scaler",
    "from_arrays",
    "heterogeneity",
    "iid",
    "iris",
    "merge",
    "moments",
    "msl",
    "natural",
    "observed_channels",
    "partition_table",
    "plants",
    "policy",
    "psm",
    "psm_pool",
    "read_csv",
    "smap",
    "smd",
    "split",
    "stack_rows",
    "stack_series",
    "standard",
    "standardise",
    "stratified_split",
    "temporal_split",
    "titanic",
    "unstack",
]
