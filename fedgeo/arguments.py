"""Checks of arguments that factories and engines share."""

import operator
from typing import Any


def whole(name: str, value: Any, least: int) -> int:
    """The value as a Python integer, be it Python's, NumPy's or JAX's.

    Raises:
        ValueError: no whole number of at least ``least``, or one that 32 bits do not hold.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if isinstance(value, bool) or not least <= number < 2**31:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return number
