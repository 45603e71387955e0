"""`BambiModel`, what `decoct.from_bambi` returns. Loading this module loads Bambi."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from decoct.bridges.bambi_data import (
    CENTERED,
    centered_components,
    parameters_of,
    response_of,
    with_data,
)
from decoct.bridges.pymc_model import PyMCModel
from decoct.bridges.pymc_model import bridge as pymc_bridge
from decoct.errors import ModelError

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
    made = pymc_bridge(with_data(spec))
    unreported = {name + CENTERED for name, _ in centered_components(spec)}
    unreported |= {name for name in made.named if name.endswith(OFFSET)}
    named = tuple(name for name in made.named if name not in unreported)
    return BambiModel(**{**vars(made), "named": named, "name": str(spec.formula.main)})


def _check(spec: Any) -> None:
    """Refuse what cannot be cut into rows."""
    response = response_of(spec)
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
