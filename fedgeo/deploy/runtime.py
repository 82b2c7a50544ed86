"""Saved detectors, read and run with NumPy alone: this file is all that a device needs beside a detector's own."""

import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

FORMAT, VERSION = "fedgeo detector", 1
ABOUT = "detector.json"


def write(path: str | os.PathLike[str], about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Path:
    """Save a detector as one file, a zip archive of ``detector.json`` and one ``.npy`` an array; atomic.

    Args:
        path: of the file; one that is there is replaced if it is a detector's.
        about: what JSON can hold.
        arrays: of numbers or booleans, by name.

    Returns:
        The path.

    Raises:
        FileExistsError: there is something else.
    """
    path = Path(path)
    if path.exists() and not (path.is_file() and _is_detector(path)):
        raise FileExistsError(f"{path} is there and is no detector; choose another name")
    kept = {name: np.asarray(value, order="C") for name, value in arrays.items()}  # keeps 0-d arrays
    facts = {name: {"shape": a.shape, "dtype": a.dtype.str, "sha256": _sha256(a)} for name, a in kept.items()}
    text = json.dumps(
        {"format": FORMAT, "version": VERSION, **about, "arrays": facts}, indent=2, allow_nan=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(ABOUT, text + "\n")
            for name, array in kept.items():
                buffer = io.BytesIO()
                np.save(buffer, array, allow_pickle=False)
                archive.writestr(f"{name}.npy", buffer.getvalue())
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
    return path


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What :func:`write` saved: the facts, and the arrays by name.

    Raises:
        FileNotFoundError: no file there.
        ValueError: no detector, another version, or a file that is damaged or was changed.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no detector at {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
    except Exception as error:  # a damaged archive fails in as many ways as zipfile and zlib have
        raise ValueError(f"{path} is no detector or is damaged ({error}); copy it again") from error
    try:
        about = json.loads(members.pop(ABOUT))
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} is no detector: it has no readable {ABOUT}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"{path} is no {FORMAT}: its {ABOUT} says nothing of the kind")
    if about.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {about.get('version')!r} of the format, this fedgeo reads version {VERSION}; "
            "save it again with this one, or install the one that wrote it"
        )
    facts = about.get("arrays")
    if not isinstance(facts, dict) or {f"{name}.npy" for name in facts} != set(members):
        raise ValueError(f"{path} is damaged: its arrays are not those that {ABOUT} lists; copy it again")
    arrays = {}
    for name, want in facts.items():
        try:
            array = np.load(io.BytesIO(members[f"{name}.npy"]), allow_pickle=False)
        except Exception as error:  # likewise
            raise ValueError(f"{path}, array {name}, is damaged ({error}); copy it again") from error
        got = {"shape": list(array.shape), "dtype": array.dtype.str, "sha256": _sha256(array)}
        if got != want:
            raise ValueError(
                f"{path}, array {name}: it has {got}, {ABOUT} says {want}; one was changed, so copy the detector again"
            )
        arrays[name] = array
    return about, arrays


def _is_detector(path: Path) -> bool:
    return zipfile.is_zipfile(path) and ABOUT in zipfile.ZipFile(path).namelist()


def _sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
