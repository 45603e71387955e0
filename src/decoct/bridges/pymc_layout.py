"""Which data of a PyMC model are rows, and which PyMC models have no coreset of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm
from pymc.data import MinibatchOp
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor import function  # pyright: ignore[reportPrivateImportUsage]
from pytensor.graph.traversal import ancestors, graph_inputs

from decoct.errors import ModelError

WRAP = 'with pm.Data("x", x) inside the model'


@dataclass(frozen=True)
class ModelData:
    """The data of a PyMC model.

    Attributes
    ----------
    n_rows
        N, the length of the observed variables.
    rows, constants
        Names of the row-wise ``pm.Data``, and of the others.
    dims
        Names of the dimension along the rows; usually one or none.
    """

    n_rows: int
    rows: tuple[str, ...]
    constants: tuple[str, ...]
    dims: tuple[str, ...]


def layout_of(model: pm.Model) -> ModelData:
    """Return which data are rows, or refuse the model.

    The observed variables' first axis is the rows'. ``pm.Data`` with as many entries along its
    first axis is row-wise, unless that axis has another name than the observed variables'.
    """
    if model.parent is not None:
        raise ModelError("This is a model nested in another; give the outermost one.")
    _check_variables(model)
    lengths = _find_observed_lengths(model)
    if len(set(lengths.values())) > 1:
        each = ", ".join(f"'{name}' has {n}" for name, n in lengths.items())
        raise ModelError(
            f"The observed variables have different numbers of rows ({each}), and a coreset has "
            "the rows of one table. Give them rows that have all responses; or let the shorter "
            "data count as prior, as a pm.Potential of their log density."
        )
    n_rows = next(iter(lengths.values()))
    dims = {axis_name(model, rv.name) for rv in model.observed_RVs} - {None}
    rows = tuple(data.name for data in model.data_vars if _is_row_wise(model, data, n_rows, dims))
    for name in rows:
        if model[name].type.shape[0] is not None:
            raise ModelError(
                f"pm.Data '{name}' has the fixed shape {model[name].type.shape}, and a coreset has "
                "fewer rows; leave out shape=."
            )
    dims |= {axis_name(model, name) for name in rows}
    _check_responses(model, rows)
    _check_potentials(model, rows)
    constants = tuple(data.name for data in model.data_vars if data.name not in rows)
    return ModelData(n_rows, rows, constants, tuple(sorted(dim for dim in dims if dim is not None)))


def axis_name(model: pm.Model, name: str) -> str | None:
    """Return the name of a variable's first dimension, or None."""
    names = model.named_vars_to_dims.get(name) or (None,)
    return names[0]


def _check_variables(model: pm.Model) -> None:
    if not model.free_RVs:
        raise ModelError("The model has no free variable, and so no posterior.")
    for rv in model.free_RVs:
        _check_not_imputed(model, rv.name)
        if np.dtype(rv.dtype).kind != "f":
            raise ModelError(
                f"Free variable '{rv.name}' is discrete ({rv.dtype}); decoct needs continuous "
                "parameters. Sum it out by hand, for instance with pm.Mixture, or with "
                "pymc_extras.marginalize."
            )
        if rv.dtype != "float64":
            raise ModelError(
                f"Free variable '{rv.name}' is {rv.dtype}, and decoct computes in float64; set "
                "pytensor.config.floatX = 'float64' before the model is made."
            )
    if not model.observed_RVs:
        raise ModelError(
            "No variable of the model is observed. Give the responses with observed=; a likelihood "
            "written as pm.Potential has no rows: write it as pm.CustomDist(..., logp=..., "
            "observed=...)."
        )
    for rv in model.observed_RVs:
        if isinstance(getattr(rv.owner, "op", None), MinibatchRandomVariable):
            raise ModelError(
                f"Observed variable '{rv.name}' has a total_size, which scales its log density, as "
                "the coreset's weights do already; leave total_size out."
            )
    everything = [*model.observed_RVs, *(model.rvs_to_values[rv] for rv in model.observed_RVs)]
    for variable in ancestors(everything):
        if isinstance(getattr(variable.owner, "op", None), MinibatchOp):
            raise ModelError(
                "The model draws its data with pm.Minibatch, so no row is fixed and can have a "
                "weight; give the whole arrays in pm.Data."
            )


def _check_not_imputed(model: pm.Model, name: str) -> None:
    """Refuse the free variable that PyMC makes of the missing entries of observed=."""
    response = name.removesuffix("_unobserved")
    if response != name and f"{response}_observed" in model.named_vars:
        raise ModelError(
            f"'{response}' has missing responses, which PyMC imputes: a coreset of rows cannot "
            "represent one unknown per missing row. Drop the rows without a response, and give the "
            "others in pm.Data."
        )


def _find_observed_lengths(model: pm.Model) -> dict[str, int]:
    """Return the length of every observed variable's first axis."""
    lengths = {}
    for rv in model.observed_RVs:
        value = model.rvs_to_values[rv]
        if not _data_behind(model, [value]):
            raise ModelError(
                f"The observed data of '{rv.name}' are a constant in the model, so rows cannot be "
                f'taken out of them. Put them in pm.Data: observed=pm.Data("{rv.name}_data", y), '
                f"and the covariates of its rows likewise, {WRAP}."
            )
        if value.ndim == 0:
            raise ModelError(
                f"Observed variable '{rv.name}' is a single number, not rows; give it one value "
                "per row along its first axis."
            )
        lengths[rv.name] = value.shape[0]
    # no C compiler for a few lengths
    count = function([], list(lengths.values()), mode="FAST_COMPILE")
    return {name: int(n) for name, n in zip(lengths, count(), strict=True)}


def _is_row_wise(model: pm.Model, data: Any, n_rows: int, dims: set[str | None]) -> bool:
    shape = np.shape(data.get_value(borrow=True))
    if not shape or shape[0] != n_rows:
        return False
    name = axis_name(model, data.name)
    return name is None or not dims or name in dims


def _check_responses(model: pm.Model, rows: tuple[str, ...]) -> None:
    for rv in model.observed_RVs:
        behind = _data_behind(model, [model.rvs_to_values[rv]])
        if not any(data.name in rows for data in behind):
            raise ModelError(
                f"The observed data of '{rv.name}' come from pm.Data '{behind[0].name}', whose "
                "first axis is not the rows; put the rows on the first axis."
            )


def _check_potentials(model: pm.Model, rows: tuple[str, ...]) -> None:
    for potential in model.potentials:
        for data in _data_behind(model, [potential]):
            if data.name in rows:
                raise ModelError(
                    f"pm.Potential '{potential.name}' depends on the rows, through pm.Data "
                    f"'{data.name}'; PyMC does not say which part belongs to which row. Write it "
                    "as pm.CustomDist(..., logp=..., observed=...), one value per row."
                )


def _data_behind(model: pm.Model, variables: Iterable[Any]) -> list[Any]:
    inputs = set(graph_inputs(list(variables)))
    return [data for data in model.data_vars if data in inputs]
