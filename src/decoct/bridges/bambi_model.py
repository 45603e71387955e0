"""`BambiModel`, what `decoct.from_bambi` returns. Loading this module loads Bambi.

Bambi writes the design and the response into the PyMC graph as constants of N rows. They are found
between the response and the free variables, so that no prior is touched, and put into ``pm.Data``
instead; the numbers in them stay as Bambi computed them from all rows. The intercept that Bambi
reports, with the means x̄ of all rows,

    Intercept = Intercept_centered − Σ_j x̄_j β_j,

becomes a deterministic variable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

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

from decoct.bridges.pymc_model import PyMCModel
from decoct.bridges.pymc_model import bridge as pymc_bridge
from decoct.errors import ModelError

CENTERED = "_centered"
"""Ending of the free variable that is the intercept of the centred predictors."""

ONES, UNNAMED = "1", "rows"
"""The predictor of ``(1|group)``, which has no name in the formula."""

OFFSET = "_offset"
"""Ending of the non-centred group effects, which Bambi does not report."""

FIXED = {
    "hurdle_negativebinomial": "pm.HurdleNegativeBinomial",
    "hurdle_poisson": "pm.HurdlePoisson",
}
"""Families whose density has a fixed number of rows, and what to use in their place."""


class BambiModel(PyMCModel):
    """A Bambi model as decoct's: made by `decoct.from_bambi`.

    It is a `PyMCModel` of Bambi's own PyMC model with the rows in ``pm.Data``; `constrain` names
    what Bambi's ``fit`` reports.

    Examples
    --------
    >>> import bambi, decoct, numpy as np, pandas as pd
    >>> data = pd.DataFrame({"x": np.arange(100.0), "y": np.arange(100) % 7})
    >>> bridge = decoct.from_bambi(bambi.Model("y ~ x", data))
    >>> draws = dict.fromkeys(["Intercept_centered", "x", "sigma"], np.ones((4, 250)))
    >>> bridge.unconstrain(draws).shape
    (4, 250, 3)
    """

    kind: ClassVar[str] = "bambi"
    predicts: ClassVar[str] = "model.predict"


def bridge(spec: Any) -> BambiModel:
    """Return a Bambi model as decoct's; builds it if it is not built."""
    _check(spec)
    if not spec.built:
        spec.build()
    made = pymc_bridge(_with_data(spec))
    unreported = {name + CENTERED for name, _ in _center_components(spec)}
    unreported |= {name for name in made.named if name.endswith(OFFSET)}
    named = tuple(name for name in made.named if name not in unreported)
    return BambiModel(**{**vars(made), "named": named, "name": str(spec.formula.main)})


def _check(spec: Any) -> None:
    """Refuse what cannot be cut into rows."""
    response = _response_of(spec)
    if response.is_weighted:
        raise ModelError(
            f"The response is {response.name}. decoct gives the rows weights of its own, and Bambi "
            "works out the priors of such a model from responses and weights together. Leave "
            "weighted() out; if your rows do come with weights, write the model in PyMC with the "
            "weights in pm.Data, and use decoct.from_pymc."
        )
    distribution = FIXED.get(spec.family.name)
    if response.is_truncated or getattr(response, "is_constrained", False):
        distribution = distribution or "pm.Truncated"
    if distribution:
        raise ModelError(
            f"The density of {spec.formula.main} with family {spec.family.name} is a truncated "
            "one, which Bambi makes for exactly the rows it has, so that rows cannot be taken out. "
            f"Write the model in PyMC with {distribution} and the rows in pm.Data, and use "
            "decoct.from_pymc."
        )
    if response.is_censored:
        raise ModelError(
            f"Bambi writes the bounds of {response.name} as infinite numbers, row by row, and "
            "decoct takes finite ones. Write the model in PyMC with the observed values and the "
            "kind of censoring in pm.Data, and use decoct.from_pymc."
        )
    rows, given = int(np.shape(response.data)[0]), len(spec.data)
    if rows != given:
        raise ModelError(
            f"Bambi dropped {given - rows} of {given} rows with missing values (dropna=True), so "
            "that row numbers would not be those of your table. Drop them first: "
            "data = data.dropna()."
        )
    for component in parameters_of(spec).values():
        for term in component.hsgp_terms.values():
            if term.by_levels is not None:
                raise ModelError(
                    f"Term {term.name} has a Gaussian process for each level of by=, whose rows "
                    "Bambi sorts by level: they cannot be taken out one by one. Use one hsgp() "
                    "without by=, or a spline with an interaction."
                )


def _with_data(spec: Any) -> pm.Model:
    """Return a copy of the PyMC model of a built Bambi model, with its rows in ``pm.Data``."""
    model: pm.Model = spec.backend.model
    for rv, value in model.rvs_to_initial_values.items():
        if value is not None:
            raise ModelError(
                f"The prior of '{rv.name}' has an initial value, which PyMC cannot copy; leave "
                "initval out of the bambi.Prior."
            )
    fgraph: Any = fgraph_from_model(model)[0]
    n_rows = int(np.shape(_response_of(spec).data)[0])
    replaced = _data_of(fgraph, spec, n_rows, set(model.named_vars))
    for name, _ in _center_components(spec):
        _rename_free(fgraph, name, name + CENTERED)
    rebuilt: Any = FunctionGraph(outputs=_rebuilt(fgraph, replaced), clone=False)
    rebuilt._coords, rebuilt._dim_lengths = fgraph._coords, fgraph._dim_lengths
    made = model_from_fgraph(rebuilt, mutate_fgraph=True)
    for variable in dict.fromkeys(replaced.values()):
        if isinstance(variable, SharedVariable):
            made.register_data_var(variable)
    _report_intercepts(made, spec)
    return made


def _response_of(spec: Any) -> Any:
    """Return a Bambi model's response term, by its new name or its old one."""
    found = getattr(spec, "response_term", None)
    return spec.response_component.term if found is None else found


def parameters_of(spec: Any) -> dict[str, Any]:
    """Return the parts of a Bambi model that have a formula, by their new name or their old one."""
    found = getattr(spec, "conditional_parameters", None)
    return spec.distributional_components if found is None else found


def _center_components(spec: Any) -> Iterator[tuple[str, list[tuple[str, np.ndarray]]]]:
    """Yield the names of a Bambi model's centred intercepts, with common terms and their means."""
    for component in parameters_of(spec).values():
        if component.intercept_term and component.common_terms and spec.center_predictors:
            terms = {_find_name(term): term.data for term in component.common_terms.values()}
            columns = {name: np.reshape(data, (len(data), -1)) for name, data in terms.items()}
            means = [(name, array.mean(axis=0)) for name, array in columns.items()]
            yield _find_name(component.intercept_term), means


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
    response = _response_of(spec)
    values = np.squeeze(response.data)
    yield _find_name(response), values
    if values.ndim == 2:
        yield from ((f"{_find_name(response)}_{k}", column) for k, column in enumerate(values.T))
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
            yield _find_name(term), np.squeeze(term.data)


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
    for name, means in _center_components(spec):
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


def _find_name(term: Any) -> str:
    return term.alias or term.name
