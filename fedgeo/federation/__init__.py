"""Federated rounds as one compiled program; works with any :class:`FedAlgorithm` and knows none."""

from fedgeo.federation.checkpoints import CheckpointError as CheckpointError
from fedgeo.federation.checkpoints import Checkpoints as Checkpoints
from fedgeo.federation.engine import combine as combine
from fedgeo.federation.engine import deploy as deploy
from fedgeo.federation.engine import fed_round as fed_round
from fedgeo.federation.engine import fit as fit
from fedgeo.federation.engine import init as init
from fedgeo.federation.engine import round_keys as round_keys
from fedgeo.federation.engine import run as run
from fedgeo.federation.engine import score as score
from fedgeo.federation.engine import upload_bytes as upload_bytes
from fedgeo.federation.history import Records as Records
from fedgeo.federation.history import RoundInfo as RoundInfo
from fedgeo.federation.history import incidents as incidents
from fedgeo.federation.participation import Sampler as Sampler
from fedgeo.federation.participation import bernoulli as bernoulli
from fedgeo.federation.participation import everyone as everyone
from fedgeo.federation.participation import recorded as recorded
from fedgeo.federation.participation import uniform as uniform
from fedgeo.federation.participation import with_deadline as with_deadline
from fedgeo.federation.participation import with_dropout as with_dropout
from fedgeo.federation.sharding import client_mesh as client_mesh
