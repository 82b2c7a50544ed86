"""Processes that run ``tests.federation.child``."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def start(*arguments, **options):
    """The process, not waited for."""
    command = [sys.executable, "-m", "tests.federation.child", *map(str, arguments)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, **options)


def run(out, *arguments):
    """The arrays that a whole run writes."""
    process = start(out, *arguments)
    process.communicate(timeout=200)
    assert process.returncode == 0
    return load(out)


def load(out):
    """Arrays in the order of their leaves."""
    with np.load(out) as arrays:
        return [arrays[str(i)] for i in range(len(arrays.files))]
