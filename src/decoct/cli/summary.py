"""Mean, spread, R-hat and ESS of every parameter of a posterior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

UNSCALED = "beta_unscaled"
"""Variable for coefficients per unit of the table's own columns."""

MIXED = 1.01
"""R-hat above which chains have not mixed (Vehtari et al. 2021)."""

HEADINGS = ("parameter", "mean", "sd", "5 %", "95 %", "R-hat", "ESS")


@dataclass(frozen=True)
class Line:
    """One parameter; ``rhat`` and ``ess`` are NaN where there are too few chains or draws."""

    name: str
    mean: float
    sd: float
    q5: float
    q95: float
    rhat: float
    ess: float

    @classmethod
    def of(cls, name: str, values: Float[np.ndarray, "chains draws"]) -> Line:
        low, high = np.quantile(values, [0.05, 0.95])
        sd = float(values.std(ddof=1)) if values.size > 1 else float("nan")
        return cls(name, float(values.mean()), sd, float(low), float(high), *_convergence(values))

    def cells(self) -> list[str]:
        figures = [f"{x:.4g}" for x in (self.mean, self.sd, self.q5, self.q95)]
        rhat = "-" if np.isnan(self.rhat) else f"{self.rhat:.3f}"
        return [self.name, *figures, rhat, "-" if np.isnan(self.ess) else f"{self.ess:.0f}"]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def add_unscaled(draws: xr.DataTree, model: Any) -> bool:
    """Add the coefficients per unit of the table's columns, if the model standardised any."""
    design = getattr(model, "design", None)
    if design is None or "beta" not in draws["posterior"]:
        return False
    if (design.scale == 1.0).all() and (design.shift == 0.0).all():
        return False
    beta = draws["posterior"].to_dataset()["beta"]
    unscaled = beta.copy(data=np.asarray(model.unscaled(beta.to_numpy())))
    unscaled.attrs["description"] = "beta per unit of the columns as the table has them"
    draws["posterior"][UNSCALED] = unscaled
    return True


def lines(draws: xr.DataTree) -> list[Line]:
    """Return one line per parameter, coefficients in the table's own units where known."""
    posterior = draws["posterior"]
    skipped = "beta" if UNSCALED in posterior else None
    return [
        Line.of(name, values)
        for variable, array in posterior.data_vars.items()
        if variable != skipped
        for name, values in _scalars(str(variable), array)
    ]


def divergences(draws: xr.DataTree) -> int | None:
    """Return how many draws diverged; None if the sampler cannot tell."""
    if "sample_stats" not in draws.children or "diverging" not in draws["sample_stats"]:
        return None
    return int(draws["sample_stats"].to_dataset()["diverging"].sum())


def warnings(draws: xr.DataTree, summary: list[Line]) -> list[str]:
    """Return what must be said about the draws, one sentence each."""
    said = []
    diverged, total = divergences(draws), draws["posterior"]["chain"].size
    total *= draws["posterior"]["draw"].size
    if diverged:
        said.append(
            f"{diverged} of {total} draws diverged: the posterior has a shape that NUTS cannot "
            "follow; more --warmup may help, a tighter --prior-scale at build time often does."
        )
    unmixed = [line for line in summary if line.rhat > MIXED]
    if unmixed:
        worst = max(unmixed, key=lambda line: line.rhat)
        said.append(
            f"R-hat is above {MIXED} for {len(unmixed)} of {len(summary)} parameters "
            f"({worst.name}: {worst.rhat:.3f}): the chains have not mixed, so do not use these "
            "draws; raise --warmup and --draws."
        )
    elif all(np.isnan(line.rhat) for line in summary):
        said.append("R-hat is unknown: it needs at least 2 chains of 4 draws.")
    return said


def _scalars(name: str, array: xr.DataArray) -> Iterator[tuple[str, np.ndarray]]:
    values = array.transpose("chain", "draw", ...).to_numpy()
    rest = values.shape[2:]
    labels = array.coords[array.dims[-1]].to_numpy() if len(rest) == 1 else None
    for place in np.ndindex(*rest):
        if not place:
            yield name, values
        elif labels is not None:
            label = str(labels[place[0]])
            shown = label if name in ("beta", UNSCALED) else f"{name}[{label}]"
            yield shown, values[..., place[0]]
        else:
            yield f"{name}[{', '.join(map(str, place))}]", values[(..., *place)]


def _convergence(values: Float[np.ndarray, "chains draws"]) -> tuple[float, float]:
    from arviz_stats.base.array import array_stats

    chains, draws = values.shape
    if draws < 4 or np.ptp(values) == 0:
        return float("nan"), float("nan")
    rhat = array_stats.rhat(values, chain_axis=0, draw_axis=1) if chains > 1 else np.nan
    ess = array_stats.ess(values, chain_axis=0, draw_axis=1)
    return np.asarray(rhat).item(), np.asarray(ess).item()
