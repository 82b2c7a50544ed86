"""Three clients' data, the algorithm that they share, and both Flower apps.

The environment says which algorithm runs, for how many rounds, and where the server writes what came out
(``FEDGEO_METHOD``, ``FEDGEO_ROUNDS``, ``FEDGEO_OUT``), and whether this node sends nonsense (``FEDGEO_NAN``).
"""

import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flwr.serverapp import ServerApp

from fedgeo import data
from fedgeo.algorithms.fedkad import fedkad
from fedgeo.algorithms.koopman import random_lift
from fedgeo.algorithms.moments import prepare
from fedgeo.algorithms.one_shot import one_shot
from fedgeo.deploy import flower
from fedgeo.models.encoder import geodesic_svdd
from fedgeo.protocol import Rows

CLIENTS, SEED = 3, 0


def federation():
    """The algorithm, and the data of all clients; a node takes its own."""
    if os.environ.get("FEDGEO_METHOD", "fedkad") == "fedkad":
        streams, _ = data.standardise(data.plants(clients=CLIENTS, rows=1000))
        lift = random_lift(jax.random.key(SEED), streams.test[streams.names[0]].shape[1], window=5, size=16)
        return fedkad(lift, rank=6), prepare(lift, data.stack_series(streams.train))
    table = data.breast_cancer()
    parts = data.iid(table.y, CLIENTS, SEED)
    scaler = data.federated_scaler([table.x[rows] for rows in parts])
    rows = data.stack_rows([scaler.transform(table.x[rows][table.y[rows] == 0]) for rows in parts])
    model = geodesic_svdd(latent=8, width=32, blocks=1)
    return one_shot(model, optimizer=optax.adam(1e-3), epochs=5), Rows(*map(jnp.asarray, rows))


def load(context):
    """This node's client id and data."""
    k = int(context.node_config["partition-id"])
    own = jax.tree.map(lambda leaf: leaf[k], everything)
    if os.environ.get("FEDGEO_NAN"):
        own = jax.tree.map(lambda leaf: leaf * jnp.nan if leaf.ndim > 1 else leaf, own)
    return k, own


def note(facts):
    """A line a round."""
    with (Path(os.environ["FEDGEO_OUT"]) / "rounds.txt").open("a") as file:
        file.write(json.dumps(facts) + "\n")


def write(outcome):
    """Leave the server's state and what happened where the script looks for it."""
    out = Path(os.environ["FEDGEO_OUT"])
    np.savez(out / "server.npz", **{str(i): leaf for i, leaf in enumerate(jax.tree.leaves(outcome.server))})
    facts = {
        name: getattr(outcome, name) for name in ("incidents", "metrics", "upload_bytes", "download_bytes")
    }
    (out / "outcome.json").write_text(json.dumps(facts))


alg, everything = federation()
client = flower.client_app(alg, load, clients=CLIENTS, seed=SEED)
server = ServerApp()


@server.main()
def main(grid, context):
    """The server's whole run."""
    write(flower.serve(
        alg, grid, jax.tree.map(lambda leaf: leaf[0], everything), clients=CLIENTS, seed=SEED,
        rounds=int(os.environ.get("FEDGEO_ROUNDS", 4)), timeout=float(os.environ.get("FEDGEO_TIMEOUT", 300)),
        on_round=note,
    ))  # fmt: skip
