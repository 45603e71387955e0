"""Group numbers outside their array: an error with the row, where JAX reports none.

JAX silently clamps an index beyond the end of an array to its last entry, and drops its
derivative: group numbers that start at 1 give a wrong posterior without an error. So does a column
with −1, the code of a missing value in pandas, which counts from the end. One evaluation of every
row with JAX's index checks finds both; a −1 that the model computes (y − 1), or that a loop uses,
is taken as meant. Numbers that are right, but different in every row, make a latent value per row
(`bridges.per_row_latents`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jax.extend.core import Literal, primitives

from decoct.data.base import DEFAULT_CHUNK, Chunk, Columns
from decoct.data.encoded import EncodedRows
from decoct.errors import BadValueError
from decoct.models.base import AbstractModel, Params

SAME_NUMBERS = frozenset({"convert_element_type", "broadcast_in_dim", "reshape", "squeeze"})
"""Operations that leave the numbers of a column as they are."""

IndexProblem = tuple[int, str]
"""The first row whose evaluation indexes beyond an array, and what JAX says about it."""


def check_indices(model: AbstractModel, params: Params, rows: EncodedRows) -> None:
    """Refuse rows at which the model indexes an array out of its bounds, in one pass.

    Indices are those of the data, whatever the parameters.
    """
    # a power of two: pieces of a stream may be of any length and would each be compiled
    size = min(DEFAULT_CHUNK, 2 ** (rows.n_rows - 1).bit_length())
    problem = _FirstProblem(model, params, size)
    found = rows.map_reduce(problem, lambda first, second: first or second, size=size)
    if found is not None:
        row, says = found
        raise BadValueError(
            "An index of the model is outside an array",
            row,
            f", where JAX would use another entry: {says}. Number J groups from 0 to J − 1; "
            "where rows without a group are masked, index with jnp.maximum(g, 0).",
        )


def has_indices(model: AbstractModel, params: Params, rows: Columns) -> bool:
    """Return whether a model indexes arrays with numbers from the (encoded) rows."""
    operations: list[str] = []
    with jax.enable_x64(True):
        # traced: what parameters alone decide is not computed
        one = {name: values[:1] for name, values in rows.items()}
        jax.eval_shape(
            lambda *given: operations.extend(map(str, _split(model, *given)[1])), params, one
        )
    return any(" gather[" in one or " dynamic_slice[" in one for one in operations)


@dataclass(frozen=True)
class _FirstProblem:
    """Encoded chunk -> its first problem, or None."""

    model: AbstractModel
    params: Params
    size: int

    def __call__(self, chunk: Chunk) -> IndexProblem | None:
        rows, last = chunk.columns, chunk.n_rows - 1
        with jax.enable_x64(True):
            if self._says(rows, last) is None:
                return None
            first = bisect_left(range(last), 1, key=lambda row: bool(self._says(rows, row)))
            return chunk.start + first, str(self._says(rows, first))

    def _says(self, rows: Columns, last: int) -> str | None:
        """Return what is wrong with rows up to ``last``, padded with copies of the first."""
        source = np.arange(self.size)
        source[last + 1 :] = 0
        kept = {name: jnp.asarray(values[source]) for name, values in rows.items()}
        says = _checked(self.model, self.params, kept).get()
        return says and says.split("\n")[0].split(". Failing")[0].strip().rstrip(".")


@eqx.filter_jit
def _checked(model: AbstractModel, params: Params, rows: Mapping[str, Any]) -> Any:
    known, of_rows = _split(model, params, rows)

    def run() -> None:
        values = dict(known)
        made_by: dict[Any, Any] = {}
        for eqn in of_rows:
            inputs = [_value(atom, values) for atom in eqn.invars]
            found = inputs[1:2] if _wraps(eqn, made_by) else compute_equation(eqn, inputs)
            values |= dict(zip(eqn.outvars, found, strict=True))
            made_by |= dict.fromkeys(eqn.outvars, eqn)

    return checkify.checkify(run, errors=checkify.index_checks)()[0]


def _wraps(eqn: Any, made_by: Mapping[Any, Any]) -> bool:
    """Return whether an operation is i + n where i < 0, else i, of a column i of whole numbers."""
    if eqn.primitive.name != "select_n" or any(isinstance(atom, Literal) for atom in eqn.invars):
        return False
    which, index, wrapped = eqn.invars
    makers = [made_by[atom] for atom in (which, wrapped) if atom in made_by]
    if [maker.primitive.name for maker in makers] != ["lt", "add"]:
        return False
    column = index
    while column in made_by and made_by[column].primitive.name in SAME_NUMBERS:
        column = made_by[column].invars[0]
    return (
        column not in made_by
        and jnp.issubdtype(index.aval.dtype, jnp.integer)
        and all(maker.invars[0] is index for maker in makers)
        and getattr(makers[0].invars[1], "val", None) == 0
    )


def _split(
    model: AbstractModel, params: Params, rows: Mapping[str, Any]
) -> tuple[dict[Any, Any], list[Any]]:
    """Return the values that the potentials' operations on rows start from, and those operations.

    Operations on parameters alone are computed: packages may index beyond an array there and mean
    it, as NumPyro does for correlation matrices.
    """
    given, of_rows = jax.tree.leaves((params, rows)), []
    nested = jax.make_jaxpr(model.potentials)(params, rows)
    closed = jax.make_jaxpr(lambda *arguments: _without_calls(nested, arguments))(*given)
    jaxpr: Any = closed.jaxpr
    leaves = jax.tree.leaves(params)
    given = [*jaxpr.constvars, *jaxpr.invars[: len(leaves)]]
    known = dict(zip(given, [*closed.consts, *leaves], strict=True))
    for eqn in jaxpr.eqns:
        if all(isinstance(atom, Literal) or atom in known for atom in eqn.invars):
            inputs = [_value(atom, known) for atom in eqn.invars]
            known |= dict(zip(eqn.outvars, compute_equation(eqn, inputs), strict=True))
        else:
            of_rows.append(eqn)
    columns = zip(jaxpr.invars[len(leaves) :], jax.tree.leaves(rows), strict=True)
    return known | dict(columns), of_rows


def _without_calls(closed: Any, arguments: Sequence[Any]) -> list[Any]:
    """Return a program's results; what it calls, such as `jax.jit` functions, is part of it."""
    jaxpr = closed.jaxpr
    variables = [*jaxpr.constvars, *jaxpr.invars]
    values = dict(zip(variables, [*closed.consts, *arguments], strict=True))
    for eqn in jaxpr.eqns:
        inputs = [_value(atom, values) for atom in eqn.invars]
        called = eqn.params["jaxpr"] if eqn.primitive is primitives.jit_p else None
        made = compute_equation(eqn, inputs) if called is None else _without_calls(called, inputs)
        values |= dict(zip(eqn.outvars, made, strict=True))
    return [_value(atom, values) for atom in jaxpr.outvars]


def compute_equation(eqn: Any, inputs: Sequence[Any]) -> list[Any]:
    """Return what one operation of a traced program gives for other inputs."""
    with eqn.ctx.manager:
        values = eqn.primitive.bind(*inputs, **eqn.primitive.get_bind_params(eqn.params))
    return list(values) if eqn.primitive.multiple_results else [values]


def _value(atom: Any, values: Mapping[Any, Any]) -> Any:
    return atom.val if isinstance(atom, Literal) else values[atom]
