"""Federated rounds as one compiled program; works with any :class:`FedAlgorithm` and knows none."""

from fedgeo.federation.checkpoints import CheckpointError, Checkpoints
from fedgeo.federation.engine import (
    combine,
    deploy,
    fed_round,
    fit,
    init,
    round_keys,
    run,
    score,
    upload_bytes,
)
from fedgeo.federation.history import Records, RoundInfo, incidents
from fedgeo.federation.participation import (
    Sampler,
    bernoulli,
    everyone,
    recorded,
    uniform,
    with_deadline,
    with_dropout,
)
from fedgeo.federation.sharding import client_mesh
from fedgeo.federation.sweeps import in_turn, one_device_a_core, sweep

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "Records",
    "RoundInfo",
    "Sampler",
    "bernoulli",
    "client_mesh",
    "combine",
    "deploy",
    "everyone",
    "fed_round",
    "fit",
    "in_turn",
    "incidents",
    "init",
    "one_device_a_core",
    "recorded",
    "round_keys",
    "run",
    "score",
    "sweep",
    "uniform",
    "upload_bytes",
    "with_deadline",
    "with_dropout",
]
