"""`PyMCModel`, what `decoct.from_pymc` returns. Loading this module loads PyMC."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
import pymc as pm
from jaxtyping import Array, Float

from decoct.bridges.base import (
    PROBES,
    BridgeModel,
    InputColumns,
    Original,
    Probe,
    as_arrays,
    check_row_by_row,
    chosen_start,
    probe,
    probe_indices,
    starting_points,
    without_rows,
)
from decoct.bridges.likelihood_params import find_likelihood_params
from decoct.bridges.pymc_graph import (
    Program,
    constants_of_length,
    latent_shapes,
    make_log_sigmoid_form,
    quoted,
)
from decoct.bridges.pymc_layout import Layout, layout_of
from decoct.bridges.pymc_site import make_site
from decoct.bridges.pymc_weighted import weighted_model
from decoct.bridges.rewrites import rewrite
from decoct.coreset import Coreset
from decoct.data.encoded import EncodedRows
from decoct.data.tables import rows as as_rows
from decoct.errors import BadValueError, ModelError, RequestError
from decoct.models.base import EncodedColumns, Params, RawRows
from decoct.models.validation import row_number
from decoct.runtime.precision import float64

PER_ROW = (
    "A coreset of rows cannot represent one unknown per row. Marginalise it, or give it a "
    "dimension of groups of fixed size with the group number in pm.Data."
)

FLAT = (type(pm.Flat.rv_op), type(pm.HalfFlat.rv_op))
"""Priors without an integral."""

FAILURES = (TypeError, ValueError, IndexError, AssertionError)
"""Errors of PyTensor and JAX for shapes that do not match."""


class DataColumns(InputColumns):
    """The encoding of row-wise data: as numbers of the type that ``pm.Data`` gave them."""

    def __init__(self, types: Mapping[str, str]) -> None:
        super().__init__(tuple(types))
        self.types = types

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        encoded = super().encode(rows, start)
        return {name: self._cast(name, values, start) for name, values in encoded.items()}

    def _cast(self, name: str, values: np.ndarray, start: int | np.ndarray) -> np.ndarray:
        wanted = np.dtype(self.types[name])
        if wanted.kind in "iub" and values.dtype.kind == "f":
            whole = (values == values.astype(wanted)).reshape(len(values), -1).all(axis=1)
            if not whole.all():
                bad = int(np.argmin(whole))
                raise BadValueError(
                    f"has the value {values[bad]}",
                    row_number(start, bad),
                    f", and the model's pm.Data of that name is {wanted}.",
                    name,
                )
        return values.astype(wanted, copy=False)


class PyMCModel(BridgeModel):
    """A PyMC model as decoct's: made by `decoct.from_pymc`.

    Parameters are the unconstrained values of the free variables, by name, as PyMC's own samplers
    use them: θ = T(z), with log|dT/dz| in the prior.

    Attributes
    ----------
    program
        Its graphs.
    types
        Row-wise data, and their types.
    named
        Free variables, and deterministic ones that do not depend on the rows.
    labels
        Constrained names with one dimension that has labels: (name, (dimension, labels)). Other
        dimensions with labels: (dimension, (dimension, labels)).

    Examples
    --------
    >>> import decoct, numpy as np, pymc as pm
    >>> with pm.Model() as model:
    ...     mu = pm.Normal("mu", 0.0, 10.0)
    ...     _ = pm.Normal("obs", mu, 1.0, observed=pm.Data("x", np.arange(100.0)))
    >>> decoct.from_pymc(model).rows.n_rows
    100
    """

    kind: ClassVar[str] = "pymc"

    program: Program = eqx.field(static=True)
    types: tuple[tuple[str, str], ...] = eqx.field(static=True)
    named: tuple[str, ...] = eqx.field(static=True)
    labels: tuple[tuple[str, tuple[str, tuple[str, ...]]], ...] = eqx.field(static=True)

    def to_pymc(self, coreset: Coreset) -> pm.Model:
        """Return the posterior of weighted rows as a PyMC model; see `Coreset.to_pymc`."""
        given = {name: coreset.rows[name] for name in self.inputs}
        rows = self.encode(given, coreset.indices)
        site = coreset.site and partial(make_site, self, coreset.site)
        return weighted_model(
            self.model, rows, coreset.indices, coreset.weights, coreset.n_rows, site
        )

    @property
    def model(self) -> pm.Model:
        """The model this was made from."""
        if self.original.model is None:
            raise RequestError(
                "This model came from another process or a compiled function and no longer has "
                "its PyMC model; make it again with decoct.from_pymc."
            )
        return self.original.model

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        """Return the row-wise data as numbers of the types that ``pm.Data`` gave them."""
        return DataColumns(dict(self.types)).encode(rows, start)

    def potentials(self, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
        """Return Σ over observed variables of log p(row n), in nats; pure JAX."""
        return _potentials(self.program, params, rows)

    def log_prior(self, params: Params) -> Float[Array, ""]:
        """Return the log density of free variables and potentials, Jacobians included."""
        return self.program.evaluate(params, as_arrays(self.template))[1]

    def constrain(self, params: Params) -> dict[str, Array]:
        """Return free and deterministic variables on their natural scale.

        Deterministic variables that depend on the rows are left out: they are no parameters.
        """
        values = self.program.evaluate(params, as_arrays(self.template))[2]
        return {name: values[name] for name in self.named}

    def coords(self, rows: RawRows) -> dict[str, tuple[str, list[str]]]:
        return {name: (dim, list(labels)) for name, (dim, labels) in self.labels}

    def unconstrain(self, draws: Any) -> Float[np.ndarray, "chains S d"]:
        """Return PyMC's draws as the flat unconstrained ones that `decoct.check` takes.

        Parameters
        ----------
        draws
            What ``pm.sample`` or nutpie returned; or free variable -> values (chains, S, ...).

        Raises
        ------
        ModelError
            A free variable is missing.

        Examples
        --------
        >>> import decoct, numpy as np, pymc as pm
        >>> with pm.Model() as model:
        ...     mu = pm.Normal("mu", 0.0, 10.0)
        ...     _ = pm.Normal("obs", mu, 1.0, observed=pm.Data("x", np.arange(100.0)))
        >>> decoct.from_pymc(model).unconstrain({"mu": np.zeros((4, 250))}).shape
        (4, 250, 1)
        """
        given = draws if isinstance(draws, dict) else draws["posterior"]
        return self.flattened(given, "free variable", "pm.sample")

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "constants": dict(self.program.constants)}


def _potentials(program: Program, params: Params, rows: Mapping[str, Array]) -> Float[Array, " n"]:
    return rewrite(program.potentials, [make_log_sigmoid_form()])(params, dict(rows))


@float64
def bridge(model: pm.Model) -> PyMCModel:
    """Return a PyMC model as decoct's."""
    layout = layout_of(model)
    table = as_rows({name: model[name].get_value(borrow=True) for name in layout.rows})
    types = {name: str(model[name].dtype) for name in layout.rows}
    encoded = EncodedRows(table, DataColumns(types))
    few = encoded.take(probe_indices(encoded.n_rows, PROBES[-1]))
    template = {name: values[: PROBES[0]] for name, values in few.items()}
    program = Program(model, layout)
    shapes = _latent_shapes(model, layout, few, template)
    points = starting_points(shapes)
    probed = _probed(program, points, few, shapes, layout.n_rows)
    check_row_by_row(probed)
    free = without_rows(probed)
    named = tuple(name for name in program.values if name in free)
    start = chosen_start(probed, points, program.evaluate, encoded, lambda: _own_start(model))

    def values(params: Params) -> dict[str, Array]:
        found = program.evaluate(params, as_arrays(few))[2]
        return {name: found[name] for name in named}

    return PyMCModel(
        name=model.name,
        start=start,
        inputs=tuple(layout.rows),
        axes=_axes(model, named),
        original=Original(encoded.raw, model),
        likelihood_params=find_likelihood_params(partial(_potentials, program), start, few, values),
        template=template,
        improper=tuple(rv.name for rv in model.free_RVs if isinstance(rv.owner.op, FLAT)),
        program=program,
        types=tuple(types.items()),
        named=named,
        labels=_labels(model, named),
    )


def _own_start(model: pm.Model) -> dict[str, np.ndarray] | None:
    """Return PyMC's own starting point: zero may be impossible under a prior.

    None where PyMC has none, as for ``initval="prior"`` of a prior that cannot be drawn from; the
    other points are left then, and `chosen_start` refuses the model if none of them will do.
    """
    try:
        initial = model.initial_point(random_seed=0)
    except (NotImplementedError, *FAILURES):
        return None
    values = {str(rv.name): str(model.rvs_to_values[rv].name) for rv in model.free_RVs}
    return {name: np.asarray(initial[value], dtype=np.float64) for name, value in values.items()}


def _latent_shapes(
    model: pm.Model, layout: Layout, few: EncodedColumns, fewer: EncodedColumns
) -> dict[str, tuple[int, ...]]:
    """Return the free variables' unconstrained shapes, or refuse those that follow the rows."""
    whole = {name: model[name].get_value(borrow=True) for name in layout.rows}
    tables = [whole, few, fewer]
    try:
        found = latent_shapes(model, layout, tables)
    except FAILURES as error:
        raise _does_not_follow(layout.n_rows, [], [], error) from error
    n, m = layout.n_rows, PROBES[-1]
    for name, shape in found[0].items():
        if shape == found[1][name] == found[2][name]:
            continue
        sizes = f"Free variable '{name}' has shape {shape} on {n} rows and {found[1][name]} on {m}"
        if n in shape and m in found[1][name]:
            raise ModelError(f"{sizes}. {PER_ROW}")
        raise ModelError(
            f"{sizes}: its size is worked out from the rows (such as ids.max() + 1), and a coreset "
            "need not have a row of every group. Give the number of groups as coords= or shape=."
        )
    return found[0]


def _probed(
    program: Program,
    points: Mapping[str, np.ndarray],
    few: EncodedColumns,
    shapes: Mapping[str, tuple[int, ...]],
    n_rows: int,
) -> Probe:
    try:
        return probe(program.evaluate, points, few)
    except ModelError:
        raise
    except jax.errors.JAXTypeError as error:
        raise ModelError(
            "The model has shapes that depend on the values of its data or parameters, which JAX "
            "cannot compile. Compute sizes outside the model, and use pm.math.switch for choices. "
            f"JAX says: {quoted(error)}"
        ) from error
    except FAILURES as error:
        latents = [name for name, shape in shapes.items() if n_rows in shape]
        arrays = constants_of_length(program.density, n_rows)
        raise _does_not_follow(n_rows, latents, arrays, error) from error


def _does_not_follow(
    n_rows: int, latents: list[str], arrays: list[tuple[int, ...]], error: Exception
) -> ModelError:
    says = f"The model fails when it is given {PROBES[-1]} of its {n_rows} rows"
    if latents:
        return ModelError(f"{says}: free variable '{latents[0]}' has {n_rows} values. {PER_ROW}")
    if arrays:
        shapes = ", ".join(map(str, arrays))
        return ModelError(
            f"{says}: it has data of {n_rows} rows as constants (shape {shapes}), so that rows "
            'cannot be taken out of them. Put them in pm.Data: x = pm.Data("x", x) inside the '
            "model, before they are used."
        )
    return ModelError(
        f"{says}. Every array of its rows must be in pm.Data, with the rows on the first axis, and "
        f"no size may be worked out from them. The error was: {quoted(error)}"
    )


def _axes(model: pm.Model, named: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    axes = {}
    for name in named:
        dims = model.named_vars_to_dims.get(name)
        if dims:
            axes[name] = tuple(dim or f"{name}_dim_{axis}" for axis, dim in enumerate(dims))
    return tuple(axes.items())


def _labels(
    model: pm.Model, named: tuple[str, ...]
) -> tuple[tuple[str, tuple[str, tuple[str, ...]]], ...]:
    labels = []
    for name in named:
        dims = model.named_vars_to_dims.get(name)
        found = model.coords.get(str(dims[0])) if dims is not None and len(dims) == 1 else None
        if dims is not None and found is not None:
            labels.append((name, (str(dims[0]), tuple(map(str, found)))))
    known = {dim for _, (dim, _) in labels}
    every = (str(d) for name in named for d in model.named_vars_to_dims.get(name) or () if d)
    for dim in dict.fromkeys(every):
        found = model.coords.get(dim)
        if dim not in known and found is not None:  # of arrays of several axes alone
            labels.append((dim, (dim, tuple(map(str, found)))))
    return tuple(labels)
