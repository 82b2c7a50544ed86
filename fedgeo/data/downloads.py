"""Data sets from their publishers' own servers, every file checked against its SHA-256."""

import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pooch

from fedgeo.data.files import ROOT_VARIABLE

BY_HAND = {
    "SMAP_MSL": "khundman/telemanom on GitHub (the address of the arrays that it names has been reported dead)",
    "PSM": "eBay/RANSynCoders on GitHub, which states no checksums",
    "titanic": "the Titanic competition on Kaggle, which wants an account",
}
"""Data sets that cannot be fetched and checked, and where to get them."""


REGISTRY = resources.files("fedgeo.data") / "registry.txt"


def downloadable() -> tuple[str, ...]:
    """The folders that :func:`download` can fill."""
    return tuple(dict.fromkeys(file.split("/")[0] for file in _registry().registry))


def download(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    on_file: Callable[[str, int], None] | None = None,
) -> Path:
    """Fetch a data set into the layout that its loader reads; files that are there and right are kept.

    Of the 28 machines of SMD these are the 23 whose published bytes we could check.

    Args:
        name: a folder's name out of :func:`downloadable`.
        root: the folder to put it in, created if absent; by default ``$FEDGEO_DATA``.
        on_file: told each file's name before it is fetched, and how many there are.

    Returns:
        The data set's folder.

    Raises:
        ValueError: a data set that must be got by hand, a file that is there and differs from the publisher's, or one
            that arrived other than the publisher's.
        ConnectionError: it could not be fetched; what came before is kept.
    """
    files = _registry(root)
    wanted = [file for file in files.registry if file.split("/")[0] == name]
    if not wanted:
        where = (
            f"get {name} by hand from {BY_HAND[name]}"
            if name in BY_HAND
            else f"there is no data set {name!r}"
        )
        raise ValueError(f"{where}; what can be fetched: {', '.join(downloadable())}")
    folder = Path(files.path)
    for file in wanted:
        known = files.registry[file]
        if (folder / file).exists() and pooch.file_hash(str(folder / file)) != known:
            raise ValueError(
                f"{folder / file} is there and is not the publisher's (its SHA-256 is not {known}); "
                "move it away, or choose another root"
            )
    for file in wanted:
        if on_file:
            on_file(file, len(wanted))
        try:
            files.fetch(file)
        except OSError as error:
            raise ConnectionError(
                f"could not fetch {file} from {files.get_url(file)}: {error}; "
                "files that came before it are kept, so try again"
            ) from error
    return folder / name


def _registry(root: str | os.PathLike[str] | None = None) -> pooch.Pooch:
    given = os.environ.get(ROOT_VARIABLE, ".") if root is None else root
    files = pooch.create(Path(given).expanduser(), base_url="")
    with REGISTRY.open() as lines:
        files.load_registry(lines)
    return files
