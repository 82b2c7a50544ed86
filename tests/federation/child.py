"""Runs a small FedKAD federation in a process of its own, to be killed, or to have devices that this one has not.

python -m tests.federation.child OUT ROUNDS [--folder FOLDER] [--devices N] [--die-in-save N SECONDS]
    [--processes N --process I --port PORT]
"""

import argparse
import os
import signal
import sys
import threading

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("rounds", type=int)
parser.add_argument("--folder")
parser.add_argument("--every", type=int, default=2)
parser.add_argument("--devices", type=int)
parser.add_argument("--virtual", type=int, default=1)
parser.add_argument("--block-size", type=int)
parser.add_argument("--die-in-save", nargs=2, type=float)
parser.add_argument("--slow", action="store_true")
parser.add_argument("--processes", type=int, default=1)
parser.add_argument("--process", type=int, default=0)
parser.add_argument("--port", type=int)


def clients():
    """Thirteen streams of unequal length."""
    import jax.numpy as jnp
    import numpy as np

    from fedgeo.protocol import Series

    rng = np.random.default_rng(0)
    x = rng.normal(size=(13, 60, 3)).cumsum(axis=1)
    mask = np.arange(60) < rng.integers(20, 60, size=(13, 1))
    return Series(jnp.asarray(x * mask[..., None] / 5, jnp.float32), jnp.asarray(mask))


def main(options):
    """Fit, and write the server's state, the clients' and the history."""
    import jax
    import numpy as np

    if options.processes > 1:
        jax.distributed.initialize(f"localhost:{options.port}", options.processes, options.process)

    from fedgeo import federation
    from fedgeo.algorithms.fedkad import fedkad
    from fedgeo.algorithms.koopman import random_lift
    from fedgeo.algorithms.moments import prepare

    lift = random_lift(jax.random.key(0), 3, window=4, size=6)
    alg = fedkad(lift, rank=3, start="independent")
    sampler = federation.with_dropout(federation.uniform(6), before=0.1, after=0.1)
    checkpoints = federation.Checkpoints(options.folder, every=options.every) if options.folder else None
    records = federation.Records(options.folder + "-records", map(str, range(13))) if options.folder else None
    mesh = federation.client_mesh(options.devices) if options.devices else None
    if options.die_in_save:
        die_in_save(*options.die_in_save)

    def progress(done):
        sys.stdout.write(f"{done}\n")
        sys.stdout.flush()
        if options.slow:
            threading.Event().wait(0.2)

    state, history = federation.fit(
        alg, jax.random.key(1), prepare(lift, clients()), rounds=options.rounds, sampler=sampler, mesh=mesh,
        block_size=options.block_size, checkpoints=checkpoints, records=records, on_progress=progress,
    )  # fmt: skip
    if options.process == 0:
        leaves = {str(i): np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves((state, history)))}
        np.savez(options.out, **leaves)


def die_in_save(number, seconds):
    """Have this process killed some time after the start of the save of this number."""
    from fedgeo.federation import checkpoints

    save, saves = checkpoints.Store.save, []

    def dying(self, done, tree):
        saves.append(done)
        if len(saves) == number:
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
        save(self, done, tree)

    checkpoints.Store.save = dying


if __name__ == "__main__":
    arguments = parser.parse_args()
    if arguments.virtual > 1:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={arguments.virtual}"
    sys.exit(main(arguments))
