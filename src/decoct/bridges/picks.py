"""Entries of arrays of parameters that rows pick, with what scales them moved before the pick.

Of τ z[g], which people write for effects of groups, rows depend on z and τ; of (τ z)[g], which are
the same numbers, on the effects τ z alone. So are

    a v[i], v[i]/a              (a v)[i], (v/a)[i]      a has no axis of rows
    u[i] v[i], −v[i]            (u v)[i], (−v)[i]
    a (r v[i]), (a r) v[i]      r (a v)[i]
    v[i, k], v[i][:, k]         (v[:, k])[i]            k a known number or slice
    v[k, i]                     (v[k])[i]               k a known number
    a v[i, j], v[i, j]/a        (a v)[i, j]             a is one number, i and j are of rows
    v[i] @ M                    (v @ M)[i]
    a (R @ v), (R @ v)/a        R @ (a v), R @ (v/a)    R is a matrix of rows

where v is computed from parameters; a group's numbers that are data stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.extend.core import primitives


@dataclass(frozen=True, eq=False)
class Term:
    """A value, and the operation and the terms that it came from."""

    value: Any
    name: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[Term] = ()


def known_number(term: Term) -> Any:
    """Return one number that is known while the function is traced, repeated or not; or None."""
    while term.name in ("broadcast_in_dim", "convert_element_type"):
        term = term.inputs[0]
    is_known = not term.name and not isinstance(term.value, Tracer) and np.size(term.value) == 1
    return np.asarray(term.value).item() if is_known else None


def move_before_pick(name: str, params: Mapping[str, Any], inputs: Sequence[Term]) -> Term | None:
    """Return the pick from a changed array that is the same as an operation on picks, or None."""
    match name:
        case "mul":
            return _multiply(*inputs) or _multiply(*inputs[::-1])
        case "div":
            return _scale(inputs[0], inputs[1], lax.div)
        case "neg" if (pick := _pick_of(inputs[0])) is not None:
            return _rows_of(pick, -pick.source)
        case "dot_general" if (pick := _pick_of(inputs[0])) is not None:
            (contracted, _), batch = params["dimension_numbers"]
            if 0 not in contracted and batch == ((), ()):
                return _rows_of(
                    pick, lax.dot_general_p.bind(pick.source, inputs[1].value, **params)
                )
        case "slice" if (pick := _pick_of(inputs[0])) is not None:
            first, last = params["start_indices"], params["limit_indices"]
            if params["strides"] is None and last[0] - first[0] == np.shape(inputs[0].value)[0]:
                places = map(slice, first[1:], last[1:])
                return _rows_of(pick, pick.source[(slice(None), *places)])
        case "squeeze":
            pick, axes = _pick_of(inputs[0]), params["dimensions"]
            if pick is None:
                return _collapse(inputs[0], axes)
            if 0 not in axes:
                return _rows_of(pick, lax.squeeze(pick.source, axes))
    return None


class _Pick(NamedTuple):
    """v[i]."""

    source: Any  # (J, ...)
    indices: Term  # (n, 1)
    params: Mapping[str, Any]


def _pick_of(term: Term) -> _Pick | None:
    """Return a term as entries along one axis of an array of parameters, or None."""
    if term.name != "gather":
        return None
    source, indices = term.inputs
    dims, fill = term.params["dimension_numbers"], term.params["fill_value"]
    columns, shape = len(dims.start_index_map), np.shape(source.value)
    axes = tuple(range(columns))
    is_pick = (
        isinstance(source.value, Tracer)
        and (fill is None or np.isnan(fill))
        and np.ndim(indices.value) == 2
        and dims.start_index_map == dims.collapsed_slice_dims == axes
        and not dims.operand_batching_dims
        and dims.offset_dims == tuple(range(1, np.ndim(term.value)))
        and term.params["slice_sizes"] == (1,) * columns + shape[columns:]
    )
    if not is_pick:
        return None
    if columns == 1:
        return _Pick(source.value, indices, term.params)
    parts = _columns(indices)
    places = [known_number(one) for one in parts]
    if len(places) != columns or places.count(None) != 1:
        return None
    kept = tuple(slice(None) if place is None else place for place in places)
    return _Pick(source.value[kept], parts[places.index(None)], term.params)


def _collapse(term: Term, squeezed: Sequence[int]) -> Term | None:
    """Return slices of length 1 without that axis, as `jax.vmap` of v[i] makes them, or None."""
    if term.name != "gather":
        return None
    source, (first, *others) = term.inputs[0].value, _columns(term.inputs[1])
    dims, sizes = term.params["dimension_numbers"], term.params["slice_sizes"]
    places = [known_number(one) for one in others]
    is_slice = (
        not (dims.collapsed_slice_dims or dims.operand_batching_dims or None in places)
        and dims.start_index_map == tuple(range(1 + len(others)))
        and dims.offset_dims == tuple(range(1, np.ndim(term.value)))
        and sizes[0] == 1 == squeezed[0]
    )
    if not is_slice:
        return None
    starts = [*places, *(0 for _ in sizes[1 + len(places) :])]
    ends = map(add, starts, sizes[1:])
    source = source[(slice(None), *map(slice, starts, ends))]
    pick = _Pick(source, first, term.params)
    return _rows_of(pick, lax.squeeze(source, [axis - 1 for axis in squeezed[1:]]))


def _columns(indices: Term) -> Sequence[Term]:
    """Return what indices of several axes are made of: one term an axis."""
    return indices.inputs if indices.name == "concatenate" else [indices]


def _rows_of(pick: _Pick, source: Any) -> Term:
    """Return the same entries of another array."""
    rest = np.shape(source)[1:]
    offsets = tuple(range(1, 1 + len(rest)))
    dims = lax.GatherDimensionNumbers(offsets, collapsed_slice_dims=(0,), start_index_map=(0,))
    params = {**pick.params, "dimension_numbers": dims, "slice_sizes": (1, *rest)}
    value = primitives.gather_p.bind(source, pick.indices.value, **params)
    return Term(value, "gather", params, (Term(source), pick.indices))


def _multiply(picked: Term, other: Term) -> Term | None:
    """Return v[i] or R @ v times a factor with it on v, as far as it can be; else None."""
    pick, also = _pick_of(picked), _pick_of(other)
    if pick is not None and also is not None and _are_same(pick.indices, also.indices):
        return _rows_of(pick, pick.source * also.source)
    found = _scale(picked, other, lax.mul)
    if found is not None:
        return found
    # a (r v[i]), (a r) v[i]
    for product, factor in ((picked, other), (other, picked)):
        if product.name == "mul":
            for one, rows in (product.inputs, product.inputs[::-1]):
                inner, number = (one, factor) if product is picked else (factor, one)
                found = _scale(inner, number, lax.mul)
                if found is not None:
                    return Term(rows.value * found.value, "mul", {}, (rows, found))
    return None


def _scale(term: Term, factor: Term, operation: Any) -> Term | None:
    """Return the operation on v[i] or R @ v and a as one on v; None if ``a`` may have rows."""
    found, scale = _source_of(term), _without_rows(factor)
    if scale is None:
        return None
    if found is not None:
        source, rebuild = found
        return rebuild(operation(*jnp.broadcast_arrays(source, scale)))
    if np.ndim(scale) or term.name != "gather" or term.params["fill_value"] is not None:
        return None
    source, indices = term.inputs
    scaled = Term(operation(*jnp.broadcast_arrays(source.value, scale)))
    value = primitives.gather_p.bind(scaled.value, indices.value, **term.params)
    return Term(value, term.name, term.params, (scaled, indices))


def _source_of(term: Term) -> tuple[Any, Callable[[Any], Term]] | None:
    """Return v of v[i] or R @ v, and what makes the same of another array; else None."""
    pick = _pick_of(term)
    if pick is not None:
        return pick.source, lambda source: _rows_of(pick, source)
    if term.name != "dot_general" or np.ndim(term.value) != 1:
        return None
    inputs = list(term.inputs)
    place = next((i for i, one in enumerate(inputs) if np.ndim(one.value) == 1), None)
    if place is None:
        return None

    def rebuild(source: Any) -> Term:
        inputs[place] = Term(source)
        value = lax.dot_general_p.bind(*(one.value for one in inputs), **term.params)
        return Term(value, term.name, term.params, inputs)

    return inputs[place].value, rebuild


def _without_rows(term: Term) -> Any:
    """Return a value as one that has 1 on the axis of rows, or no axes; None if it may differ."""
    number = term
    while np.ndim(number.value) and number.name in ("broadcast_in_dim", "reshape"):
        number = number.inputs[0]
    if not np.ndim(number.value):
        return number.value
    if term.name != "broadcast_in_dim":
        return None
    inner, sizes = term.inputs[0].value, [1] * np.ndim(term.value)
    for axis, size in zip(term.params["broadcast_dimensions"], np.shape(inner), strict=True):
        sizes[axis] = size
    return jnp.reshape(inner, sizes) if sizes[0] == 1 else None


def _are_same(one: Term, other: Term) -> bool:
    """Return whether terms are the same operations on the same values."""
    if one is other:
        return True
    if one.name != other.name or one.params != other.params or not one.name:
        number = known_number(one)
        return not one.name and number is not None and number == known_number(other)
    if len(one.inputs) != len(other.inputs):
        return False
    return all(map(_are_same, one.inputs, other.inputs))
