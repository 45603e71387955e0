"""Probe a model of another framework: on a few rows, together and apart, at several points.

A coreset of it is only right if f_n depends on row n alone and π₀ on no row. Frameworks do not
promise either: a model may standardise its covariates or centre a prior at the mean response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from decoct.bridges.likelihood_params import find_likelihood_params
from decoct.bridges.per_row_latents import PER_ROW
from decoct.data.base import Columns, Rows
from decoct.data.encoded import EncodedRows
from decoct.errors import ModelError
from decoct.models.base import Params

PROBES = (3, 5)
"""Numbers of rows a model is tried on: neither is 1, which would broadcast silently."""

NARROW, WIDE, TRIES = 0.1, 2.0, 20
"""Starting points: uniform within the first of zero, or else the second, and their number."""

MORE = 1000
"""Rows on which a model is tried that is not finite on the first ones."""

Evaluate = Callable[[Params, Mapping[str, Any]], tuple[Array, Array, dict[str, Array]]]
"""A pure JAX function of parameters and rows: potentials, log prior, constrained values."""


def probe_indices(n_rows: int, n: int) -> np.ndarray:
    """Return n row numbers spread over the table; a short table repeats some.

    Neither end is among them: there a sorted column has its smallest and largest value.
    """
    return np.linspace(0, n_rows - 1, n + 2)[1:-1].astype(np.int64)


def as_arrays(rows: Mapping[str, Any]) -> dict[str, Array]:
    """Return columns as JAX arrays."""
    return {name: jnp.asarray(values) for name, values in rows.items()}


class Probe(NamedTuple):
    """A model at several points, on a few rows together and apart.

    Attributes
    ----------
    points
        Unconstrained parameters, stacked along the first axis.
    few
        The rows, encoded.
    whole, apart : (points, n)
        Potentials of all the rows at once, and of two parts of them.
    priors : (points, 2)
        The log prior, evaluated with either part.
    values
        Constrained name -> its values, evaluated with either part.
    """

    points: dict[str, np.ndarray]
    few: Columns
    whole: Array
    apart: Array
    priors: Array
    values: dict[str, tuple[Array, Array]]


def probe(
    evaluate: Evaluate,
    shapes: Mapping[str, tuple[int, ...]],
    table: Rows,
    own: Mapping[str, np.ndarray] | None,
) -> Probe:
    """Evaluate a model on a few rows of an encoded table, together and apart, as in a pass.

    ``shapes`` are those of its parameters, ``own`` is the framework's starting point.
    """
    points = starting_points(shapes, own)
    few = table.take(probe_indices(table.n_rows, PROBES[-1]))
    cut = PROBES[-1] // 2

    def at(params: Params, rows: Mapping[str, Array]) -> Any:
        parts = [{k: v[part] for k, v in rows.items()} for part in (slice(cut), slice(cut, None))]
        whole, _, _ = evaluate(params, rows)
        (one, prior, values), (other, prior_too, values_too) = (evaluate(params, p) for p in parts)
        both = {name: (value, values_too[name]) for name, value in values.items()}
        return whole, jnp.concatenate([one, other]), jnp.stack([prior, prior_too]), both

    try:
        return Probe(points, few, *jax.jit(jax.vmap(at, in_axes=(0, None)))(points, as_arrays(few)))
    except jax.errors.JAXTypeError as error:
        raise ModelError(
            "The model reads the values of its rows while it is compiled, such as ids.max() for a "
            "size, int(x[0]), or a Python if on data. Pass sizes and flags as constants, computed "
            "outside the model, and use jnp.where or pm.math.switch for choices. JAX says: "
            f"{quoted(error)}"
        ) from error


def starting_points(
    shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, np.ndarray] | None
) -> dict[str, np.ndarray]:
    """Return points to start from, stacked: near zero, and near the framework's ``own`` point.

    They are off these to break symmetries. The others are up to 2 from zero in every coordinate, as
    for the frameworks' samplers.
    """
    rng = np.random.default_rng(0)
    points = {name: rng.uniform(-WIDE, WIDE, (TRIES, *shape)) for name, shape in shapes.items()}
    for name, values in points.items():
        values[:2] *= NARROW / WIDE
        if own is not None:
            values[1] += own[name]
    return points


def choose_start(probed: Probe, evaluate: Evaluate, table: Rows) -> dict[str, np.ndarray]:
    """Return a point at which prior and potentials are finite; `ModelError` if none is.

    Of the first two it is the one with the larger density, else the first of the others. If some
    point of the probe gives no finite value on its few rows, all are tried on more rows of the
    encoded table, with zero.
    """
    points, potentials, priors = probed.points, probed.whole, probed.priors[:, 0]
    finite = np.isfinite(probed.whole).all(axis=1) & np.isfinite(probed.priors).all(axis=1)
    if not finite.all():
        points = {k: np.concatenate([v, np.zeros_like(v[:1])]) for k, v in points.items()}
        more = as_arrays(table.take(probe_indices(table.n_rows, min(MORE, table.n_rows))))
        potentials, priors = jax.jit(jax.vmap(lambda at: evaluate(at, more)[:2]))(points)
        on_more = np.isfinite(potentials).all(axis=1) & np.isfinite(priors)
        # if no point is finite, the build names the row that is impossible at this one
        finite = on_more if on_more.any() else finite
    tried = len(next(iter(points.values())))
    if not finite.any():
        raise ModelError(
            f"The model's log density is not finite at any of {tried} starting points, most "
            f"of them within {WIDE:g} of zero in unconstrained space; scale its data, drop rows "
            "that are impossible under the model, or use a link that allows every value."
        )
    density, found = np.sum(potentials, axis=1) + priors, np.flatnonzero(finite)
    near = found[found < 2] if found[0] < 2 else found[:1]
    place = near[np.argmax(density[near])]
    return {name: values[place] for name, values in points.items()}


def check_row_by_row(probed: Probe) -> None:
    """Refuse a model in which a row's potential, or the prior, depends on (other) rows.

    Potentials are compared at points where all are finite, if there are any: PyMC makes those of
    all rows −∞ where one row has a parameter out of range.
    """
    finite = np.isfinite(probed.whole).all(axis=1) & np.isfinite(probed.apart).all(axis=1)
    where = finite if finite.any() else slice(None)
    if not _same(probed.whole[where], probed.apart[where]):
        raise ModelError(
            "The log-likelihood of a row changes with the other rows given: the model computes "
            "something from the whole table (a mean, a maximum, a rank). Compute it outside the "
            "model and pass it as a constant."
        )
    if not _same(probed.priors[:, 0], probed.priors[:, 1]):
        raise ModelError(
            "The prior, or a factor outside the rows' plate, changes with the rows given. A "
            "prior's constants must be computed outside the model and passed as constants; a "
            "factor that belongs to the rows goes inside the plate, one value per row."
        )


def _same(first: Array, second: Array) -> bool:
    return np.allclose(first, second, rtol=1e-8, atol=1e-10, equal_nan=True)


def common_fields(
    program: Any,
    names: Iterable[str],
    probed: Probe,
    table: EncodedRows,
) -> dict[str, Any]:
    """Return the fields of a `BridgeModel` that a program gives; refuse what is no sum over rows.

    ``names`` have its constrained values in order; ``probed`` is the program on a few rows of the
    encoded ``table``.
    """
    check_row_by_row(probed)
    few, pairs = probed.few, probed.values
    named = tuple(k for k in names if k in pairs and np.array_equal(*pairs[k], equal_nan=True))
    start = choose_start(probed, program.evaluate, table)

    def values(params: Params) -> dict[str, Array]:
        found = program.values(params, as_arrays(few))
        return {name: found[name] for name in named}

    return {
        "start": start,
        "inputs": table.columns,
        "likelihood_params": find_likelihood_params(program.potentials, start, few, values),
        "template": {name: column[: PROBES[0]] for name, column in few.items()},
        "program": program,
        "named": named,
    }


def refuse_size(
    what: str, shape: tuple[int, ...], n: int, other: tuple[int, ...], m: int, remedy: str
) -> NoReturn:
    """Refuse a latent array whose shape on n rows is another than on m."""
    sizes = f"{what} has shape {shape} on {n} rows and {other} on {m}"
    if n in shape and m in other:
        raise ModelError(f"{sizes}. {PER_ROW}")
    raise ModelError(
        f"{sizes}: its size is worked out from the rows (such as ids.max() + 1), and a coreset "
        f"need not have a row of every group. {remedy}"
    )


def quoted(error: BaseException) -> str:
    """Return what another package says, as a short phrase."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
