"""Samplers of the coreset posterior π_w."""

from typing import TYPE_CHECKING

from decoct.runtime import lazy_names
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Draws, Sampler, WeightedDensity
from decoct.samplers.laplace import Laplace, laplace

if TYPE_CHECKING:
    from decoct.samplers.exact import Exact
    from decoct.samplers.metropolis import Metropolis
    from decoct.samplers.nuts import NUTS
    from decoct.samplers.pathfinder import Pathfinder

__all__ = [
    "NUTS",
    "Automatic",
    "Draws",
    "Exact",
    "Laplace",
    "Metropolis",
    "Pathfinder",
    "Sampler",
    "WeightedDensity",
    "laplace",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"Exact": "exact", "Metropolis": "metropolis", "NUTS": "nuts", "Pathfinder": "pathfinder"},
)
