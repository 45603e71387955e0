"""A built Bambi model as a PyMC model whose rows are in ``pm.Data``.

Bambi writes the design and the response into the PyMC graph as constants of N rows. They are found
between the response and the free variables, so that no prior is touched, and put into ``pm.Data``
instead; the numbers in them stay as Bambi computed them from all rows. The intercept that Bambi
reports, with the means x̄ of all rows,

    Intercept = Intercept_centered − Σ_j x̄_j β_j,

becomes a deterministic variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pymc as pm
from pymc.model.fgraph import (
    ModelFreeRV,
    ModelObservedRV,
    fgraph_from_model,
    model_from_fgraph,
)
from pytensor.compile.sharedvalue import SharedVariable, shared
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import alloc, constant
from pytensor.tensor.math import dot

from decoct.errors import ModelError

CENTERED = "_centered"
"""Ending of the free variable that is the intercept of the centred predictors."""

ONES, UNNAMED = "1", "rows"
"""The predictor of ``(1|group)``, which has no name in the formula."""


def with_data(spec: Any) -> pm.Model:
    """Return a copy of the PyMC model of a built Bambi model, with its rows in ``pm.Data``."""
    model: pm.Model = spec.backend.model
    for rv, value in model.rvs_to_initial_values.items():
        if value is not None:
            raise ModelError(
                f"The prior of '{rv.name}' has an initial value, which PyMC cannot copy; leave "
                "initval out of the bambi.Prior."
            )
    fgraph: Any = fgraph_from_model(model)[0]
    n_rows = int(np.shape(response_of(spec).data)[0])
    replaced = _data_of(fgraph, spec, n_rows, set(model.named_vars))
    for name, _ in centered_components(spec):
        _rename_free(fgraph, name, name + CENTERED)
    rebuilt: Any = FunctionGraph(outputs=_rebuilt(fgraph, replaced), clone=False)
    rebuilt._coords, rebuilt._dim_lengths = fgraph._coords, fgraph._dim_lengths
    made = model_from_fgraph(rebuilt, mutate_fgraph=True)
    for variable in dict.fromkeys(replaced.values()):
        if isinstance(variable, SharedVariable):
            made.register_data_var(variable)
    _report_intercepts(made, spec)
    return made


def response_of(spec: Any) -> Any:
    """Return a Bambi model's response term, by its new name or its old one."""
    found = getattr(spec, "response_term", None)
    return spec.response_component.term if found is None else found


def parameters_of(spec: Any) -> dict[str, Any]:
    """Return the parts of a Bambi model that have a formula, by their new name or their old one."""
    found = getattr(spec, "conditional_parameters", None)
    return spec.distributional_components if found is None else found


def centered_components(spec: Any) -> Iterator[tuple[str, list[tuple[str, np.ndarray]]]]:
    """Yield the names of a Bambi model's centred intercepts, with common terms and their means."""
    for component in parameters_of(spec).values():
        if component.intercept_term and component.common_terms and spec.center_predictors:
            terms = {_called(term): term.data for term in component.common_terms.values()}
            columns = {name: np.reshape(data, (len(data), -1)) for name, data in terms.items()}
            means = [(name, array.mean(axis=0)) for name, array in columns.items()]
            yield _called(component.intercept_term), means


def _data_of(fgraph: FunctionGraph, spec: Any, n_rows: int, taken: set[str]) -> dict[Any, Any]:
    """Return the ``pm.Data`` of each constant of n_rows rows; equal constants share one."""
    expected = list(_expected(spec))
    replaced: dict[Any, Any] = {}
    known: list[tuple[np.ndarray, Any]] = []
    padding: list[Any] = []
    for value in _row_constants(fgraph, n_rows):
        name = next((k for k, v in expected if _equal(v, value.data)), UNNAMED)
        if name == ONES:
            # it multiplies one effect a row, to which a single 1 broadcasts
            replaced[value] = constant(value.data[:1])
            continue
        if name == UNNAMED and _is_padding(value.data):
            padding.append(value)
            continue
        same = [data for array, data in known if _equal(array, value.data)]
        if not same:
            called = _free_name(f"{name}_data", taken)
            # any number of rows; a second axis of length 1 has to stay one that broadcasts
            same = [shared(value.data, name=called, shape=(None, *value.type.shape[1:]))]
            known.append((value.data, same[0]))
        replaced[value] = same[0]
    length = known[0][1].shape[0]
    for value in padding:
        replaced[value] = alloc(value.data.flat[0], length, *value.data.shape[1:])
    return replaced


def _is_padding(array: np.ndarray) -> bool:
    """Return whether these are the zeros or ones with which Bambi shapes a linear predictor."""
    return array.dtype.kind == "f" and bool(np.all(array == 0.0) or np.all(array == 1.0))


def _row_constants(fgraph: FunctionGraph, n_rows: int) -> list[Any]:
    """Return the constants of n_rows rows between the response and the free variables."""
    free = [node.outputs[0] for node in fgraph.apply_nodes if isinstance(node.op, ModelFreeRV)]
    ends = [
        entry
        for node in fgraph.toposort()
        if isinstance(node.op, ModelObservedRV)
        for entry in (node.inputs[1], node.inputs[0])
    ]
    found = []
    for variable in ancestors(ends, blockers=free):
        data: Any = variable.data if isinstance(variable, Constant) else None
        if getattr(data, "shape", ())[:1] == (n_rows,):
            if not isinstance(data, np.ndarray):
                raise ModelError(
                    "The model has its group-specific design as a sparse matrix; set "
                    'bambi.config["SPARSE_DOT"] = False and build it again.'
                )
            found.append(variable)
    return found


def _free_name(name: str, taken: set[str]) -> str:
    chosen, number = name, 2
    while chosen in taken:
        chosen, number = f"{name}_{number}", number + 1
    taken.add(chosen)
    return chosen


def _expected(spec: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the values of each expected constant."""
    response = response_of(spec)
    values = np.squeeze(response.data)
    yield _called(response), values
    if values.ndim == 2:
        yield from ((f"{_called(response)}_{k}", column) for k, column in enumerate(values.T))
    for name, component in parameters_of(spec).items():
        prefix = "" if name == spec.family.likelihood.parent else f"{name}_"
        if component.common_terms:
            design = np.column_stack([term.data for term in component.common_terms.values()])
            centred = component.intercept_term and spec.center_predictors
            yield f"{prefix}common", design - design.mean(axis=0) if centred else design
        for term in component.group_specific_terms.values():
            expression, factor = term.term.name.split("|")
            yield factor, term.group_index
            yield ONES if expression == ONES else f"{prefix}{expression}", term.predictor
        for term in component.offset_terms.values():
            yield _called(term), np.squeeze(term.data)


def _equal(first: Any, second: Any) -> bool:
    first, second = np.asarray(first), np.asarray(second)
    same_kind = first.shape == second.shape and first.dtype == second.dtype
    return same_kind and np.array_equal(first, second)


def _rebuilt(fgraph: FunctionGraph, replaced: dict[Any, Any]) -> list[Any]:
    """Return a graph's outputs with some variables replaced by others of any number of rows."""
    now = dict(replaced)
    for node in fgraph.toposort():
        if not any(variable in now for variable in node.inputs):
            continue
        op: Any = node.op
        inputs = [now.get(variable, variable) for variable in node.inputs]
        if hasattr(op, "build_inner_graph"):
            # newer PyTensor makes these for the shapes of their inputs: it is another one now
            made = op(*inputs, return_list=True)
        else:
            made = op.make_node(*inputs).outputs
        for old, new in zip(node.outputs, made, strict=True):
            new.name, now[old] = old.name, new
    return [now.get(output, output) for output in fgraph.outputs]


def _rename_free(fgraph: FunctionGraph, name: str, new: str) -> None:
    """Give a free variable of a model's graph, and its value, another name."""
    variable: Any = next(output for output in fgraph.outputs if output.name == name)
    value, op = variable.owner.inputs[1], variable.owner.op
    if hasattr(op, "name"):
        # newer PyMC has names on operations, older on variables alone
        op = type(op)(**{**op._props_dict(), "name": new})
    renamed = op(*variable.owner.inputs)
    renamed.name, value.name = new, new + value.name[len(name) :]
    fgraph.replace(variable, renamed)


def _report_intercepts(model: pm.Model, spec: Any) -> None:
    """Add the intercepts that Bambi reports, as deterministic variables."""
    for name, means in centered_components(spec):
        centered: Any = model[name + CENTERED]
        shift: Any = 0.0
        for term, mean in means:
            coefficients: Any = model[term]
            # a single predictor has no axis of its own, only that of the response's levels, if any
            if coefficients.ndim == centered.ndim:
                shift += float(mean.item()) * coefficients
            else:
                shift += dot(mean, coefficients)
        dims = model.named_vars_to_dims.get(centered.name)
        pm.Deterministic(name, centered - shift, model=model, dims=dims)


def _called(term: Any) -> str:
    return term.alias or term.name
