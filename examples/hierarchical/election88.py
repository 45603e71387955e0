"""A poll before the election of 1988: ``python -m examples.hierarchical.election88``.

Gelman & Hill (2006, Chapter 14): whether voter n of 11,566 is for Bush,

    logit P(y_n = 1) = β₀ + β₁ black + β₂ female + β₃ black·female + β₄ v_state
                       + age_i + edu_j + age·edu_ij + state_k + region_l,

every set of effects ~ N(0, τ²) with its own τ, and v the state's earlier votes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

from examples.hierarchical.common import Example, columns_of, main

GROUPS = {"age": 4, "edu": 4, "age_edu": 16, "state": 51, "region": 5}
"""Sets of effects and how many there are."""


def model(x, age, edu, age_edu, state, region, y=None):
    numbers = {"age": age, "edu": edu, "age_edu": age_edu, "state": state, "region": region}
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([5]).to_event(1))
    effects = {}
    for name, count in GROUPS.items():
        tau = numpyro.sample(f"tau_{name}", dist.HalfNormal(1.0))
        with numpyro.plate(name, count):
            unit = numpyro.sample(f"unit_{name}", dist.Normal(0.0, 1.0))
            effects[name] = numpyro.deterministic(f"effect_{name}", tau * unit)
    with numpyro.plate("data", x.shape[0]):
        logits = x @ beta + sum(effects[name][number] for name, number in numbers.items())
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def load() -> dict[str, Any]:
    """Return the model's arguments; x is (1, black, female, black·female, v − mean)."""
    table = columns_of("election88")
    black, female = (table[name].astype(np.float64) for name in ("black", "female"))
    votes = table["v_prev_full"] - table["v_prev_full"].mean()
    given = {"x": np.column_stack([np.ones(len(votes)), black, female, black * female, votes])}
    for name in GROUPS:
        given[name] = table["region_full" if name == "region" else name].astype(np.int64) - 1
    return {**given, "y": table["y"].astype(np.int64)}


EXAMPLE = Example(
    "election88",
    model,
    load,
    population=("beta", *(f"tau_{name}" for name in GROUPS)),
    groups=tuple(f"effect_{name}" for name in GROUPS),
    size=50,
)

if __name__ == "__main__":
    main(EXAMPLE, __doc__)
