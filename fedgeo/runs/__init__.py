"""Whole runs: data to scores to tables, each method beside its control rows under one rule.

A run trains a method for every seed, scores the test data, sets thresholds without a test label, evaluates every unit
(a client's stream, or a class held normal) on its own, and keeps the time of compiling apart from the time of running.
"""

from fedgeo.runs.result import METRICS, OnStep, Result, StreamExample
from fedgeo.runs.scores import Evaluation, evaluate
from fedgeo.runs.streams import KoopmanSettings, run_fedkad
from fedgeo.runs.tables import GeodesicSettings, run_geodesic

__all__ = [
    "METRICS",
    "Evaluation",
    "GeodesicSettings",
    "KoopmanSettings",
    "OnStep",
    "Result",
    "StreamExample",
    "evaluate",
    "run_fedkad",
    "run_geodesic",
]
