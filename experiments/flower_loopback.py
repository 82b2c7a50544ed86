"""A real federation on one machine: a server and three nodes as processes of their own, over TLS, with node keys.

    python -m experiments.flower_loopback [--method fedkad|one-shot] [--rounds 4] [--kill] [--nan] [--out FOLDER]

Makes a certificate authority, the server's certificate and a key for every node, registers the nodes, runs the app in
``flower_app``, compares the server's state with the simulator's, and stops every process whatever happens. ``--kill``
ends one node after the first round, ``--nan`` has one send what is not a number. Needs the extra ``fedgeo[flower]``.
"""

import argparse
import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import jax
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

APP = Path(__file__).with_name("flower_app")
NODES = 3


class Loopback:
    """The folder, the environment and the processes of one federation."""

    def __init__(self, folder, method="fedkad", rounds=4, timeout=300):
        self.folder, self.processes = Path(folder), []
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.environment = os.environ | {
            "FLWR_HOME": str(self.folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FEDGEO_METHOD": method, "FEDGEO_ROUNDS": str(rounds), "FEDGEO_OUT": str(self.folder),
            "FEDGEO_TIMEOUT": str(timeout), "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "jax"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }  # fmt: skip
        make_certificates(self.folder)
        self.tls = (
            "--ssl-ca-certfile", self.folder / "ca.pem", "--ssl-certfile", self.folder / "server.pem",
            "--ssl-keyfile", self.folder / "server.key",
        )  # fmt: skip

    def __enter__(self):
        """Start the server."""
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n\n[superlink.loopback]\naddress = "{self.address}"\n'
            f'root-certificates = "{self.folder / "ca.pem"}"\n'
        )
        signal.signal(
            signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
        )  # or the processes would live on
        self.start(
            "superlink", "flower-superlink", *self.tls, "--host", "127.0.0.1", "--port", self.port,
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
            "--database", self.folder / "state.db",
        )  # fmt: skip
        try:
            wait_for_port(self.port)
        except TimeoutError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        """Stop every process and what it started."""
        for process in reversed(self.processes):
            stop(process)

    def start(self, name, *command, **environment):
        """A process in a group of its own, with a log of its own."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(part) for part in command], env=self.environment | environment, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def node(self, k, *, register=True, plain=False, **environment):
        """A node with a key of its own."""
        key = make_node_key(self.folder, f"node{k}")
        if register:
            self.flwr("supernode", "register", f"{key}.pub", "loopback")
        port = free_port()
        secure = ("--insecure",) if plain else ("--root-certificates", self.folder / "ca.pem", *self.tls)
        auth = () if plain else ("--auth-supernode-private-key", key)
        return self.start(
            f"node{k}", "flower-supernode", *secure, *auth, "--superlink", self.address, "--host", "127.0.0.1",
            "--port", port, "--node-config", f"partition-id={k}", "--max-retries", 2, **environment,
        )  # fmt: skip

    def flwr(self, *command, timeout=120):
        """Run the command-line client to its end."""
        done = subprocess.run(
            ["flwr", *map(str, command)], env=self.environment, cwd=self.folder, timeout=timeout,
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"flwr {' '.join(map(str, command))} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def run(self):
        """Start the app."""
        return self.start("run", "flwr", "run", APP, "loopback", "--stream")

    def outcome(self, run, timeout=900):
        """What the server wrote at the end of a run."""
        try:
            run.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise TimeoutError(
                f"the run did not end within {timeout} s; the logs are in {self.folder}"
            ) from None
        path = self.folder / "outcome.json"
        if not path.exists():
            raise RuntimeError("the run failed:\n" + (self.folder / "run.log").read_text()[-3000:])
        return json.loads(path.read_text())

    def server(self):
        """The leaves of the server's last state."""
        with np.load(self.folder / "server.npz") as arrays:
            return [arrays[str(i)] for i in range(len(arrays.files))]


def simulated(method, rounds):
    """The leaves of the server's state in the simulator."""
    os.environ["FEDGEO_METHOD"] = method
    sys.path.insert(0, str(APP))
    import loopback

    from fedgeo import federation

    alg, data = loopback.federation()
    state, _ = federation.fit(alg, jax.random.key(loopback.SEED), data, rounds=rounds)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.server)]


def make_certificates(folder):
    """A certificate authority and the server's certificate, for localhost, for a day."""
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = name_of("fedgeo loopback authority")
    certificate = sign(authority, authority_key, authority, authority_key, is_authority=True)
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    server = sign(name_of("localhost"), server_key, authority, authority_key, is_authority=False)
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    write_private(folder / "server.key", server_key, serialization.PrivateFormat.PKCS8)


def name_of(common_name):
    """A distinguished name."""
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])


def sign(subject, subject_key, issuer, issuer_key, *, is_authority):
    """A certificate that is valid for a day."""
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(subject_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if not is_authority:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA384())


def make_node_key(folder, name):
    """A private key of a node, and its public part beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / name, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / name


def write_private(path, key, form):
    """A private key that only its owner may read."""
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def free_port():
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port, timeout=90):
    """Until somebody listens there."""
    deadline = time.monotonic() + timeout
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody listens on port {port} after {timeout} s")
        time.sleep(0.3)


def stop(process):
    """End a process group, kindly first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def main():
    """Run the federation and say how far it is from the simulator."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", choices=("fedkad", "one-shot"), default="fedkad")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--kill", action="store_true", help="end one node after the first round")
    parser.add_argument("--nan", action="store_true", help="one node sends what is not a number")
    parser.add_argument("--out", type=Path, help="keep logs and results here")
    options = parser.parse_args()
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(128 + number)
    )  # or the processes would live on
    with ExitStack() as stack:
        folder = options.out or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        loop = stack.enter_context(Loopback(folder.resolve(), options.method, options.rounds))
        nodes = [
            loop.node(k, **({"FEDGEO_NAN": "1"} if options.nan and k == 2 else {})) for k in range(NODES)
        ]
        began = time.monotonic()
        run = loop.run()
        if options.kill:
            while run.poll() is None and not (folder / "rounds.txt").exists():
                time.sleep(0.5)
            os.killpg(nodes[1].pid, signal.SIGKILL)
        outcome = loop.outcome(run)
        print(f"{options.rounds} rounds in {time.monotonic() - began:.0f} s")
        print(f"arrays: {outcome['upload_bytes']} bytes up, {outcome['download_bytes']} bytes down")
        print("\n".join(outcome["incidents"]) or "no incidents")
        leaves = loop.server()
        want = simulated(options.method, options.rounds)
        gap = max(float(np.abs(a.astype(float) - b).max()) for a, b in zip(leaves, want, strict=True))
        print(f"largest difference from the simulator with three sound nodes: {gap:.1e}")
        print("finite" if all(np.isfinite(leaf).all() for leaf in leaves) else "NOT FINITE")


if __name__ == "__main__":
    main()
