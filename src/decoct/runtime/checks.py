"""Checks of numbers in options: never a bool, never NaN."""

from __future__ import annotations

import math
import numbers
from typing import Any

from decoct.errors import RequestError


def is_whole(value: Any, least: int) -> bool:
    """Return whether the value is a whole number of at least ``least``."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    return whole and int(value) >= least


def checked_whole(option: str, value: Any, least: int) -> int:
    """Return an option's value if it is a whole number of at least ``least``, else raise."""
    if not is_whole(value, least):
        raise RequestError(f"{option} must be a whole number, at least {least}, not {value!r}.")
    return int(value)


def check_whole(options: object, **least: int) -> None:
    """Refuse fields that are not whole numbers of at least so many, or None if that is usual."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None or getattr(type(options), name) is not None:
            checked_whole(name, value, bound)


def is_positive(value: Any) -> bool:
    """Return whether the value is a positive finite number."""
    return is_finite(value) and value > 0.0


def is_finite(value: Any) -> bool:
    """Return whether the value is a finite number."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return number and math.isfinite(value)
