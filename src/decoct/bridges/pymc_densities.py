"""Log densities of a PyMC model's observed variables, in forms that XLA makes fast code of."""

from __future__ import annotations

from typing import Any

import pymc as pm

from decoct.bridges import pymc_bernoulli, pymc_poisson

FASTER = (pymc_bernoulli.density, pymc_poisson.density)
"""Each takes a variable and its value, and returns PyMC's numbers in another form, or None."""


def pointwise(model: pm.Model) -> list[Any]:
    """Return the log densities of the observed variables, one value per entry."""
    densities: Any = model.logp(vars=model.observed_RVs, sum=False)
    result = list(densities)
    for k, rv in enumerate(model.observed_RVs):
        forms = (form(rv, model.rvs_to_values[rv]) for form in FASTER)
        found = next((form for form in forms if form is not None), None)
        if found is not None:
            (result[k],) = model.replace_rvs_by_values([found])
    return result
