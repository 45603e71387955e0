"""A coreset posterior as a PyMC model: the user's own on M rows, and a potential for the weights.

The observed variables stay, with weight 1 each, and

    Σ_m (w_m − 1) f_m(θ)

is added to them as a ``pm.Potential``, so that the whole is Σ_m w_m f_m(θ). Where f_m(θ) = −∞ the
whole is −∞ whatever the weight. The coreset's site is another potential (`pymc_site`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pymc as pm
from pymc.model.fgraph import clone_model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.basic import switch
from pytensor.tensor.math import eq

from decoct.bridges.pymc_graph import per_row
from decoct.bridges.pymc_layout import layout_of
from decoct.errors import ModelError

WEIGHTS, POTENTIAL, SITE = "coreset_weights", "coreset_weighting", "coreset_site"
"""Names of the ``pm.Data`` with the weights, and of the potentials."""


def weighted_model(
    model: pm.Model,
    rows: Mapping[str, np.ndarray],
    indices: np.ndarray,
    weights: np.ndarray,
    n_rows: int,
    site: Callable[[pm.Model], Any] | None,
) -> pm.Model:
    """Return a copy of a model on M rows, given as row-wise ``pm.Data`` -> values, with weights.

    If the table of these rows has as many as the model's own, as ``n_rows`` says, the rows have
    their labels along the dimension of the rows; else their ``indices`` are the labels. ``site``
    gives the log density that stands for all other rows, a PyTensor scalar.
    """
    for name in (WEIGHTS, POTENTIAL, SITE):
        if name in model.named_vars:
            raise ModelError(f"The model has a variable '{name}', a name that decoct needs.")
    copy = _copied(model)
    for name, values in rows.items():
        copy[name].set_value(np.asarray(values, dtype=copy[name].dtype))
    for dim in layout_of(model).dims:
        _shorten(copy, dim, np.asarray(indices), n_rows)
    with copy:
        w: Any = pm.Data(WEIGHTS, np.asarray(weights, dtype=np.float64))
        densities = [
            pm.logp(rv, copy.rvs_to_values[rv], warn_rvs=False) for rv in copy.observed_RVs
        ]
        terms = [_weighting(w, per_row(density)) for density in densities]
        total: Any = sum(terms[1:], start=terms[0])
        pm.Potential(POTENTIAL, total)
        if site is not None:
            pm.Potential(SITE, site(copy))
    return copy


def _weighting(w: Any, density: Any) -> Any:
    """Return Σ (w − 1) f; −∞ stays −∞, where w < 1 would make it NaN together with f."""
    finite: Any = switch(eq(density, -np.inf), density, (w - 1.0) * density)
    return finite.sum()


def _copied(model: pm.Model) -> pm.Model:
    """Return a copy with data of its own and, other than PyMC's, with initial values."""
    initial = dict(model.rvs_to_initial_values)
    try:
        for rv in initial:
            model.rvs_to_initial_values[rv] = None
        copy = clone_model(model)
    finally:
        for rv, value in initial.items():
            model.rvs_to_initial_values[rv] = value
    for rv, value in initial.items():
        if isinstance(value, (str, np.ndarray, float)):
            copy.set_initval(copy[rv.name], value)
    # lengths that no variable needs still point to the data of the original
    pairs = {data: copy[data.name] for data in model.data_vars}
    for dim, length in copy.dim_lengths.items():
        stale = {v: pairs[v] for v in graph_inputs([length]) if v in pairs}
        if stale:
            copy._dim_lengths[dim] = clone_replace(length, replace=stale)
    return copy


def _shorten(model: pm.Model, dim: str, indices: np.ndarray, n_rows: int) -> None:
    """Let a dimension along the rows have the length and labels of the chosen rows, or numbers."""
    labels = model.coords.get(dim)
    if labels is not None and len(labels) != n_rows:
        taken = tuple(indices.tolist())  # of other rows than these
    else:
        taken = None if labels is None else tuple(labels[i] for i in indices)
    if isinstance(model.dim_lengths[dim], SharedVariable):
        model.set_dim(dim, len(indices), coord_values=taken)
    elif taken is not None:
        model._coords[dim] = taken
