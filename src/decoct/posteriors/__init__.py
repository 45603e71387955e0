"""Samplers of the coreset posterior π_w."""

from decoct.posteriors.automatic import Automatic
from decoct.posteriors.base import Draws, Sampler, WeightedDensity
from decoct.posteriors.exact import Exact
from decoct.posteriors.gibbs import Gibbs
from decoct.posteriors.laplace import Laplace, laplace
from decoct.posteriors.metropolis import Metropolis
from decoct.posteriors.nuts import NUTS
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
