"""A coreset posterior as a PyMC model: the user's own on M rows, and potentials.

The observed variables stay, with weight 1 each, and

    Σ_m (w_m − 1) f_m(θ)

is added to them as a ``pm.Potential``, so that the whole is Σ_m w_m f_m(θ). Where f_m(θ) = −∞ the
whole is −∞ whatever the weight. The site, if there is one, is another potential: s(φ(z)), a
PyTensor expression of the unconstrained values z.

φ was read from the JAX translation of the model. Most of its arrays are values in the model's own
graph, where they are found by their numbers at two random points; the expression then runs on any
backend of PyTensor. If an array is not found, decoct's JAX function is an operation: `SiteOp`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pymc as pm
from pymc.model.fgraph import clone_model
from pytensor import function  # pyright: ignore[reportPrivateImportUsage]
from pytensor.compile.mode import Mode
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.gradient import DisconnectedType
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import graph_inputs
from pytensor.tensor.basic import as_tensor_variable, concatenate, switch
from pytensor.tensor.math import eq, exp
from pytensor.tensor.type import dscalar, dvector

from decoct.bridges.base import BridgeModel, SiteDensity
from decoct.bridges.likelihood_params import are_equal_everywhere, random_points
from decoct.bridges.pymc_graph import load_backend, per_row
from decoct.bridges.pymc_layout import layout_of
from decoct.errors import ModelError
from decoct.models.parameters import ParameterSpace
from decoct.models.site import GaussianSite
from decoct.runtime.precision import float64

WEIGHTS, POTENTIAL, SITE = "coreset_weights", "coreset_weighting", "coreset_site"
"""Names of the ``pm.Data`` with the weights, and of the potentials."""

NO_REWRITES: Any = Mode(linker="py", optimizer=RewriteDatabaseQuery(include=[]))


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
    copy = _copy(model)
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


def _copy(model: pm.Model) -> pm.Model:
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


def make_site(bridge: BridgeModel, site: GaussianSite, model: pm.Model) -> Any:
    """Return the log density of a site, a quadratic in the flat φ, as a PyTensor scalar.

    It is a scalar of the variables of ``model``, the PyMC model on any rows.
    """
    z = {name: model.rvs_to_values[model[name]] for name in sorted(bridge.start)}
    found = list(z.values())
    if not bridge.likelihood_params.is_identity:
        found = _find(bridge, model, z)
    if found is None:
        load_backend().register(SiteOp)(lambda op, **options: op.compute)
        flat = concatenate([leaf.ravel() for leaf in z.values()])
        op: Any = SiteOp(SiteDensity(bridge, site), ParameterSpace.of(bridge.start))
        return op(flat)[0]
    return site.log_density(concatenate([array.ravel() for array in found]))


@float64
def _find(bridge: BridgeModel, model: pm.Model, z: Mapping[str, Any]) -> list[Any] | None:
    """Return the arrays of φ as PyTensor expressions of z; None unless all are found."""
    points, noise = random_points(bridge.start), bridge.likelihood_params.noise
    phi = [bridge.to_likelihood_params(point) for point in points]
    wanted = [jax.tree.leaves(one if noise is None else noise.undo(one)) for one in phi]
    known = _of_parameters(model, list(z.values()), [model[name] for name in bridge.inputs])
    compiled = function(list(z.values()), known, mode=NO_REWRITES, on_unused_input="ignore")
    values = [compiled(*(np.asarray(point[name]) for name in z)) for point in points]
    candidates = list(zip(known, zip(*values, strict=True), strict=True))
    found = [
        next((v for v, at_points in candidates if are_equal_everywhere(array, at_points)), None)
        for array in zip(*wanted, strict=True)
    ]
    if any(v is None for v in found):
        return None
    if noise is None:
        return found
    return list(noise.standardise(dict(zip(sorted(phi[0]), found, strict=True)), exp).values())


def _of_parameters(model: pm.Model, z: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
    """Return z and the values in the likelihood's graph that depend on z and on no row."""
    densities: Any = model.logp(vars=model.observed_RVs, sum=False)
    graph = FunctionGraph(outputs=list(densities), clone=False)
    of_rows, of_z, found = set(rows), set(z), list(z)
    for node in graph.toposort():
        if not of_rows.isdisjoint(node.inputs):
            of_rows |= set(node.outputs)
        elif not of_z.isdisjoint(node.inputs):
            of_z |= set(node.outputs)
            found += [v for v in node.outputs if str(v.type.dtype).startswith("float")]
    return found


class SiteOp(Op):
    """A pure JAX function of flat unconstrained parameters, and its gradient, as one operation.

    In processes that are forked after JAX was used, as those of ``pm.sample(cores=2)`` on Linux,
    JAX may hang: sample with ``cores=1``.
    """

    def __init__(self, density: Callable[[Any], Any], space: ParameterSpace) -> None:
        self.density, self.space = density, space
        self._compiled = jax.jit(self.compute)

    def __reduce__(self) -> tuple[type[SiteOp], tuple[Any, ...]]:
        return SiteOp, (self.density, self.space)

    def compute(self, z: Any) -> tuple[Any, Any]:
        """Return value and gradient; pure JAX."""
        return jax.value_and_grad(lambda flat: self.density(self.space.unflatten(flat)))(z)

    def make_node(self, *inputs: Any) -> Apply:
        (z,) = inputs
        return Apply(self, [as_tensor_variable(z)], [dscalar(), dvector()])

    @float64
    def perform(self, node: Any, inputs: Sequence[Any], output_storage: Any) -> None:
        found = self._compiled(jnp.asarray(inputs[0]))
        for storage, value in zip(output_storage, found, strict=True):
            storage[0] = np.asarray(value)

    def infer_shape(self, fgraph: Any, node: Any, shapes: Any) -> list[Any]:
        return [(), shapes[0]]

    def L_op(self, inputs: Any, outputs: Any, output_grads: Any) -> list[Any]:  # noqa: N802
        of_value, of_gradient = output_grads
        if isinstance(of_value.type, DisconnectedType) or not isinstance(
            of_gradient.type, DisconnectedType
        ):
            raise NotImplementedError("The coreset's site has no second derivative in PyTensor.")
        return [of_value * outputs[1]]

    pullback = L_op
    """The name that it has in newer PyTensor."""
