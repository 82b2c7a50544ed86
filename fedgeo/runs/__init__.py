"""Whole runs: data to scores to tables, each method beside its control rows under one rule.

A run trains a method for every seed, scores the test data, sets thresholds without a test label, evaluates every unit
(a client's stream, or a class held normal) on its own, and keeps the time of compiling apart from the time of running.
"""

from fedgeo.runs.result import METRICS as METRICS
from fedgeo.runs.result import OnStep as OnStep
from fedgeo.runs.result import Result as Result
from fedgeo.runs.result import StreamExample as StreamExample
from fedgeo.runs.scores import Evaluation as Evaluation
from fedgeo.runs.scores import evaluate as evaluate
from fedgeo.runs.streams import KoopmanSettings as KoopmanSettings
from fedgeo.runs.streams import run_fedkad as run_fedkad
from fedgeo.runs.tables import GeodesicSettings as GeodesicSettings
from fedgeo.runs.tables import run_geodesic as run_geodesic
