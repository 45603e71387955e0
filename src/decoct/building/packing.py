"""States of constructions as nested dicts of arrays, numbers and text, and back: for checkpoints.

The type that a construction's `init` is annotated with says what a packed state was.
"""

from __future__ import annotations

import dataclasses
import typing
from types import UnionType
from typing import Any, Union

from decoct.constructions.base import Construction
from decoct.errors import RequestError


def pack_state(method: Construction, state: Any) -> Any:
    """Return a state as nested dicts of arrays, numbers and text, for a checkpoint."""
    _state_type(method)
    return _pack(state)


def unpack_state(method: Construction, packed: Any) -> Any:
    """Return the state that `pack_state` packed."""
    return _unpack(_state_type(method), packed)


def _state_type(method: Construction) -> Any:
    kind = typing.get_type_hints(type(method).init).get("return")
    if not hasattr(kind, "_fields"):
        raise RequestError(
            f"checkpoint= needs the type of {type(method).__name__}'s state: let it be a "
            "NamedTuple, and annotate init as returning it."
        )
    return kind


def _saved_fields(kind: Any) -> dict[str, Any] | None:
    """Return the types of the fields that are saved; None of what has no fields."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif (names := getattr(kind, "_fields", None)) is None:
        return None
    hints = typing.get_type_hints(kind, include_extras=True)
    return {n: hints[n] for n in names if "not saved" not in getattr(hints[n], "__metadata__", ())}


def _pack(value: Any) -> Any:
    if (fields := _saved_fields(type(value))) is not None:
        return {name: _pack(getattr(value, name)) for name in fields}
    if isinstance(value, tuple):
        return {str(i): _pack(one) for i, one in enumerate(value)}
    if isinstance(value, dict):
        return {str(name): _pack(one) for name, one in value.items()}
    return value


def _unpack(kind: Any, value: Any) -> Any:
    if value is None:
        return None
    parts = typing.get_args(kind)
    if typing.get_origin(kind) in (Union, UnionType):
        return _unpack(next(one for one in parts if one is not type(None)), value)
    if typing.get_origin(kind) is tuple:
        return tuple(_unpack(parts[0], value[str(i)]) for i in range(len(value)))
    if typing.get_origin(kind) is dict:
        return {parts[0](name): _unpack(parts[1], one) for name, one in value.items()}
    if (fields := _saved_fields(kind)) is not None:
        found = {name: _unpack(hint, value[name]) for name, hint in fields.items()}
        return kind(**{**dict.fromkeys(getattr(kind, "_fields", ())), **found})
    return kind(value) if kind in (bool, int, float, str) else value
