"""Where data sets lie on disk, and what to say when they do not."""

import os
from pathlib import Path

ROOT_VARIABLE = "FEDGEO_DATA"
"""Environment variable that names the data folder when a loader gets no ``root``."""


def data_folder(root: str | os.PathLike[str] | None, name: str, publisher: str) -> Path:
    """The folder of one data set, from the folder that holds it, from itself or from the environment.

    Raises:
        FileNotFoundError: says what was looked for, and where the data come from.
    """
    remedy = (
        f"Get the data from their publisher ({publisher}), then pass root= or set {ROOT_VARIABLE} "
        f"to the folder that contains {name}."
    )
    given = os.environ.get(ROOT_VARIABLE) if root is None else root
    if not given:
        raise FileNotFoundError(f"no data folder: root is None and {ROOT_VARIABLE} is not set. {remedy}")
    folder = Path(given).expanduser()
    if (folder / name).is_dir():
        return folder / name
    if folder.name == name and folder.is_dir():
        return folder
    raise FileNotFoundError(f"no folder {folder / name}. {remedy}")


def existing(path: Path, layout: str) -> Path:
    """The path of a file that must be there.

    Args:
        path: of the file.
        layout: a sentence on what the folder must hold, and from whom.

    Raises:
        FileNotFoundError: if it is not.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}. {layout}.")
    return path
