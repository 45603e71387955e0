"""`PyMCModel`, what `decoct.from_pymc` returns. Loading this module loads PyMC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
import pymc as pm
from jaxtyping import Float

from decoct.bridges.base import BridgeModel, InputColumns, Original
from decoct.bridges.per_row_latents import PER_ROW
from decoct.bridges.probing import (
    PROBES,
    Probe,
    common_fields,
    probe,
    probe_indices,
    quoted,
    refuse_size,
)
from decoct.bridges.pymc_graph import Program, constants_of_length, latent_shapes
from decoct.bridges.pymc_layout import ModelData, layout_of
from decoct.bridges.pymc_site import make_site, weighted_model
from decoct.coreset import Coreset
from decoct.data.encoded import EncodedRows
from decoct.data.tables import rows as as_rows
from decoct.errors import BadValueError, ModelError, RequestError
from decoct.models.base import EncodedColumns, RawRows, row_number
from decoct.runtime.precision import float64

FLAT = (type(pm.Flat.rv_op), type(pm.HalfFlat.rv_op))
"""Priors without an integral."""

FAILURES = (TypeError, ValueError, IndexError, AssertionError)
"""Errors of PyTensor and JAX for shapes that do not match."""


@dataclass(frozen=True)
class DataColumns(InputColumns):
    """The encoding of row-wise data: as numbers of the type that ``pm.Data`` gave them."""

    types: tuple[str, ...]

    def encode(self, rows: RawRows, start: int | np.ndarray = 0) -> EncodedColumns:
        encoded = super().encode(rows, start)
        types = zip(self.columns, self.types, strict=True)
        return {name: self._cast(name, encoded[name], kind, start) for name, kind in types}

    def _cast(
        self, name: str, values: np.ndarray, kind: str, start: int | np.ndarray
    ) -> np.ndarray:
        wanted = np.dtype(kind)
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
    types
        Types of the inputs.
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
    predicts: ClassVar[str] = "pymc.sample_posterior_predictive"

    types: tuple[str, ...] = eqx.field(static=True)
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
        return DataColumns(self.inputs, self.types).encode(rows, start)

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


@float64
def bridge(model: pm.Model) -> PyMCModel:
    """Return a PyMC model as decoct's."""
    layout = layout_of(model)
    table = as_rows({name: model[name].get_value(borrow=True) for name in layout.rows})
    types = tuple(str(model[name].dtype) for name in layout.rows)
    encoded = EncodedRows(table, DataColumns(layout.rows, types))
    program = Program(model, layout)
    shapes = _latent_shapes(model, layout, encoded)
    probed = _probe(program, shapes, encoded, _own_start(model))
    fields = common_fields(program, program.named, probed, encoded)
    return PyMCModel(
        name=model.name,
        axes=_axes(model, fields["named"]),
        original=Original(encoded.raw, model),
        improper=tuple(rv.name for rv in model.free_RVs if isinstance(rv.owner.op, FLAT)),
        types=types,
        labels=_labels(model, fields["named"]),
        **fields,
    )


def _own_start(model: pm.Model) -> dict[str, np.ndarray] | None:
    """Return PyMC's own starting point, prior means for the most part.

    None where PyMC has none, as for ``initval="prior"`` of a prior that cannot be drawn from; the
    other points are left then, and `choose_start` refuses the model if none of them will do.
    """
    try:
        initial = model.initial_point(random_seed=0)
        values = {str(rv.name): initial[str(model.rvs_to_values[rv].name)] for rv in model.free_RVs}
    except (NotImplementedError, KeyError, *FAILURES):  # KeyError: pm.Uniform(-inf, inf)
        return None
    return {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}


def _latent_shapes(
    model: pm.Model, layout: ModelData, table: EncodedRows
) -> dict[str, tuple[int, ...]]:
    """Return the free variables' unconstrained shapes, or refuse those that follow the rows."""
    n = table.n_rows
    all_rows = {name: model[name].get_value(borrow=True) for name in layout.rows}
    tables = [all_rows, *(table.take(probe_indices(n, m)) for m in PROBES)]
    try:
        whole, fewer, few = latent_shapes(model, layout, tables)
    except FAILURES as error:
        raise _does_not_follow(n, [], [], error) from error
    for name, shape in whole.items():
        if not shape == few[name] == fewer[name]:
            remedy = "Give the number of groups as coords= or shape=."
            refuse_size(f"Free variable '{name}'", shape, n, few[name], PROBES[-1], remedy)
    return whole


def _probe(
    program: Program,
    shapes: Mapping[str, tuple[int, ...]],
    table: EncodedRows,
    own: Mapping[str, np.ndarray] | None,
) -> Probe:
    try:
        return probe(program.evaluate, shapes, table, own)
    except ModelError:
        raise
    except FAILURES as error:
        n = table.n_rows
        latents = [name for name, shape in shapes.items() if n in shape]
        arrays = constants_of_length(program.density, n)
        raise _does_not_follow(n, latents, arrays, error) from error


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
    dims = {name: model.named_vars_to_dims.get(name) for name in named}
    return tuple(
        (name, tuple(dim or f"{name}_dim_{axis}" for axis, dim in enumerate(axes)))
        for name, axes in dims.items()
        if axes
    )


def _labels(
    model: pm.Model, named: tuple[str, ...]
) -> tuple[tuple[str, tuple[str, tuple[str, ...]]], ...]:
    labels = {}
    for name in named:
        dims = [str(dim) for dim in model.named_vars_to_dims.get(name) or ()]
        for dim in dims:
            found = model.coords.get(dim)
            if found is not None:
                labels[name if len(dims) == 1 else dim] = (dim, tuple(map(str, found)))
    return tuple(labels.items())
