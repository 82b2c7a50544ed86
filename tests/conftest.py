"""Strict settings for every test, and the folder of real data for those that want it."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # tall LAPACK calls collapse under oversubscription

import gc
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

REPOSITORY = Path(__file__).parents[1]
CACHE = REPOSITORY / ".cache"
DATA_SETS = ("SMAP_MSL", "SMD", "titanic", "adult")

# The first example of a test pays for compilation, and machines are shared.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 1)  # tests of several devices start processes of their own
# One folder a process: JAX reads what another process is still writing.
jax.config.update(
    "jax_compilation_cache_dir", str(CACHE / "jax" / os.environ.get("PYTEST_XDIST_WORKER", "main"))
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def pytest_configure(config: pytest.Config) -> None:
    """Optimise less: the default suite compiles far more than it computes, and slow tests still as long.

    The demo's test takes the flags away again: there programs are compiled as users get them.
    """
    flags = "--xla_backend_optimization_level=1"
    if config.option.markexpr == "not slow":
        flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()


@pytest.fixture(scope="module", autouse=True)
def _forget_programs() -> Iterator[None]:
    """Drop a module's compiled programs: each holds memory maps, and a process may have only 65,530 of them."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder with one folder a data set: ``FEDGEO_DATA``, or the copies kept beside the repository."""
    if root := os.environ.get("FEDGEO_DATA"):
        return Path(root)
    unpack = REPOSITORY.parent / "shared" / "data" / "unpack.py"
    if not unpack.exists():
        pytest.skip("no real data: set FEDGEO_DATA to a folder with data sets in their published layouts")
    for name in DATA_SETS:
        if not (CACHE / "data" / name).exists():
            _unpack(unpack, name)
    return CACHE / "data"


def _unpack(script: Path, name: str) -> None:
    """Unpack beside the target, then rename: neither an interrupted run nor a second process leaves half a data set."""
    target = CACHE / "data" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as partial:
        subprocess.run([sys.executable, str(script), partial, name], check=True, capture_output=True)
        try:
            (Path(partial) / name).rename(target)
        except OSError:
            if not target.exists():  # else another process was first
                raise
