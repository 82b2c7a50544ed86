"""What experiments keep beside their pages: rows in a CSV, and in a JSON file what made them."""

import json

import pandas as pd

from fedgeo import report


def store(path, frame, keys, dtype=None):
    """Add a frame's rows to a CSV; they replace those that agree with them in the columns ``keys``.

    Args:
        path: of the CSV, made if it is not there.
        frame: the rows.
        keys: names of columns.
        dtype: of columns that must be read as something else than what they look like.
    """
    if path.exists():
        table = pd.read_csv(path, dtype=dtype)
        old = table.set_index(keys).index.isin(frame.set_index(keys).index)
        frame = pd.concat([table[~old], frame])
    frame.to_csv(path, index=False, float_format="%.6g")


def remember(path, what, facts):
    """Write facts under a name into a JSON file, in place of what stood there under it."""
    made_by = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(made_by | {what: facts}, indent=1) + "\n")


def provenance(root):
    """What makes a result, without the path of the data's folder."""
    facts = report.provenance()
    facts["command"] = facts["command"].replace(str(root), "DIR")
    return facts
