"""Mean, spread, R-hat and ESS of every parameter of a posterior."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from decoct.stats.convergence import convergence

UNSCALED = "beta_unscaled"
"""Variable for coefficients per unit of the table's own columns."""


@dataclass(frozen=True)
class Parameter:
    """The posterior of one scalar; R-hat and ESS are NaN with too few chains or draws."""

    name: str
    mean: float
    sd: float
    q5: float
    q95: float
    rhat: float
    ess: float

    @classmethod
    def of(cls, name: str, values: Float[np.ndarray, "chains draws"]) -> Parameter:
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


def parameters(draws: xr.DataTree) -> list[Parameter]:
    """Return every scalar of the posterior, coefficients in the table's own units where known."""
    return [Parameter.of(name, values) for name, values in scalars(draws)]


def scalars(draws: xr.DataTree) -> Iterator[tuple[str, Float[np.ndarray, "chains draws"]]]:
    """Yield name and draws of every scalar, coefficients in the table's own units where known."""
    posterior = draws["posterior"]
    skipped = "beta" if UNSCALED in posterior else None
    for variable, array in posterior.data_vars.items():
        if variable != skipped:
            yield from _scalars(str(variable), array)


def _scalars(name: str, array: xr.DataArray) -> Iterator[tuple[str, np.ndarray]]:
    array = array.transpose("chain", "draw", ...)
    values = array.to_numpy().astype(np.float64, copy=False)
    labels = [_labels(array, str(dim)) for dim in array.dims[2:]]
    for place in np.ndindex(*values.shape[2:]):
        label = ", ".join(str(along[i]) for along, i in zip(labels, place, strict=True))
        coefficient = name in ("beta", UNSCALED) and len(place) == 1
        shown = label if coefficient else f"{name}[{label}]" if place else name
        yield shown, values[(..., *place)]


def _labels(array: xr.DataArray, dim: str) -> np.ndarray:
    return array.coords[dim].to_numpy() if dim in array.coords else np.arange(array.sizes[dim])


def _convergence(values: Float[np.ndarray, "chains draws"]) -> tuple[float, float]:
    if np.ptp(values) == 0:
        return np.nan, np.nan
    found = convergence(values[..., None])
    return found["rhat"] if len(values) > 1 else np.nan, found["ess"]
