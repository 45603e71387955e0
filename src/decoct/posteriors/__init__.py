"""Samplers of the coreset posterior π_w."""

from typing import TYPE_CHECKING

from decoct._lazy import lazy_names
from decoct.posteriors.automatic import Automatic
from decoct.posteriors.base import Draws, Sampler, WeightedDensity
from decoct.posteriors.exact import Exact
from decoct.posteriors.laplace import Laplace, laplace
from decoct.posteriors.nuts import NUTS

if TYPE_CHECKING:
    from decoct.posteriors.gibbs import Gibbs
    from decoct.posteriors.metropolis import Metropolis
    from decoct.posteriors.pathfinder import Pathfinder

__all__ = [
    "NUTS",
    "Automatic",
    "Draws",
    "Exact",
    "Gibbs",
    "Laplace",
    "Metropolis",
    "Pathfinder",
    "Sampler",
    "WeightedDensity",
    "laplace",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Gibbs": "gibbs",
        "Metropolis": "metropolis",
        "Pathfinder": "pathfinder",
    },
)
