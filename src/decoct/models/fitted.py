"""Models without a density over parameters, and what is asked of any model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from decoct.errors import RequestError
from decoct.models.base import AbstractModel

if TYPE_CHECKING:
    import xarray as xr


@runtime_checkable
class FittedModel(Protocol):
    """A model that is fitted to weighted rows, once, and then has a posterior of its own.

    There is no density over parameters for a sampler to walk on. `DPGaussianMixture` is one.
    """

    def default_method(self) -> Any:
        """Return the construction for those who name none."""
        ...

    def table_model(self, method: Any) -> AbstractModel:
        """Return what encodes the rows for the construction, or refuse the construction."""
        ...

    def fit_passes(self) -> int:
        """Return how many passes over the table `fitted_to` makes."""
        ...

    def fitted_to(self, coreset: Any, table: Any) -> Any:
        """Return the coreset with a fit to it, given the encoded table too, as its model."""
        ...

    def draw_posterior(self, draws: int, chains: int, seed: int) -> xr.DataTree:
        """Return independent draws of the fit's posterior."""
        ...

    def fitted_state(self) -> dict[str, Any]:
        """Return what brings the fit back from a file, ready for JSON."""
        ...


def require_model(model: Any) -> None:
    """Refuse what is no model of decoct's, before any row is read."""
    if isinstance(model, type):
        raise RequestError(
            f"model is the class {model.__name__}; give an instance, such as {model.__name__}(...)."
        )
    if isinstance(model, (AbstractModel, FittedModel)):
        return
    known = "a model of decoct.models, decoct.Model, decoct.from_numpyro or decoct.from_pymc"
    if type(model).__name__.endswith("Mixture"):
        known = "decoct.mixture.DPGaussianMixture, whose parameters have scikit-learn's names"
    raise RequestError(f"A {type(model).__name__} is no model that decoct knows; give {known}.")


def require_density(model: Any, instead: str) -> None:
    """Refuse a model without a density over parameters; ``instead`` says what there is."""
    require_model(model)
    if isinstance(model, FittedModel):
        raise RequestError(
            f"A {type(model).__name__} is fitted by variational inference and has no density over "
            f"parameters; {instead}"
        )
