"""Samplers of the coreset posterior π_w."""

from decoct.posteriors.automatic import Automatic
from decoct.posteriors.base import Draws, Sampler, WeightedDensity
from decoct.posteriors.exact import Exact
from decoct.posteriors.laplace import Laplace, laplace
from decoct.posteriors.nuts import NUTS

__all__ = [
    "NUTS",
    "Automatic",
    "Draws",
    "Exact",
    "Laplace",
    "Sampler",
    "WeightedDensity",
    "laplace",
]
