"""Which arguments of a user's function are rows, and which are the same for any rows."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from decoct.errors import RequestError


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names of a function's parameters, in order; None if it takes any name."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return tuple(one.name for one in parameters if one.kind is not one.VAR_POSITIONAL)


def positional(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in the order of a function's parameters, defaults filled in between.

    What the function does not name comes last, in alphabetical order.
    """
    parameters = inspect.signature(function).parameters
    named = [i for i, name in enumerate(parameters) if name in given]
    ordered = {}
    for name in list(parameters)[: max(named, default=-1) + 1]:
        if name in given or parameters[name].default is not inspect.Parameter.empty:
            ordered[name] = given.get(name, parameters[name].default)
    return ordered | {name: given[name] for name in sorted(given) if name not in ordered}


def check_arguments(
    given: Mapping[str, Any], constants: Mapping[str, Any], names: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return the entries of a mapping as arguments: columns of any library become NumPy arrays."""
    if not given:
        raise RequestError("There are no rows; give a mapping of argument name -> array.")
    for name in given:
        if names is not None and name not in names:
            raise RequestError(
                f"The model has no argument {name!r}; its arguments are: {', '.join(names)}."
            )
        if name in constants:
            raise RequestError(f"Argument '{name}' is given twice, among the rows and as constant.")
    return {name: _plain(value) for name, value in given.items()}


def split_rows(given: Mapping[str, Any], n_rows: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the row-wise arguments, with n_rows along their first axis, and the others."""
    rowwise = {name: value for name, value in given.items() if _leading(value) == n_rows}
    others = {name: value for name, value in given.items() if name not in rowwise}
    for name, value in others.items():
        if _leading(value) is None and n_rows in map(_leading, jax.tree.leaves(value)):
            raise RequestError(
                f"Argument '{name}' is a {type(value).__name__} that contains arrays of {n_rows} "
                "rows; rows are cut from whole arguments. Write a model around yours that takes "
                f"the arrays one by one and hands yours the {type(value).__name__}."
            )
    if not rowwise:
        shapes = ", ".join(f"'{name}' {np.shape(value)}" for name, value in given.items())
        raise RequestError(
            f"The plate over the rows has size {n_rows}, and no argument has that many entries "
            f"along its first axis: {shapes}. Put the rows on the first axis."
        )
    return rowwise, others


def describe_constant(value: Any) -> Any:
    """Return a constant for a file: itself if it is a number or text, else its fingerprint."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (np.ndarray, jax.Array)):
        array = np.ascontiguousarray(value)
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        return {"shape": list(array.shape), "type": str(array.dtype), "sha256": digest}
    return type(value).__name__


def plain_number(value: Any) -> Any:
    """Return a single number of NumPy or JAX as Python's, for it may be a size; else the value."""
    is_number = isinstance(value, (np.generic, np.ndarray, jax.Array)) and not np.ndim(value)
    return value.item() if is_number else value


def _plain(value: Any) -> Any:
    value = plain_number(value)
    if isinstance(value, (np.ndarray, jax.Array)) or not hasattr(value, "__array__"):
        return value
    return np.asarray(value)


def _leading(value: Any) -> int | None:
    """Return the length of an array's first axis; None for what is no array."""
    is_list = isinstance(value, (list, tuple)) and all(map(np.isscalar, value))
    if not (is_list or isinstance(value, (np.ndarray, jax.Array))) or not np.ndim(value):
        return None
    return int(np.shape(value)[0])
