"""Ways to choose rows and weights, one file each."""

from decoct.constructions.base import Chosen, Construction, Problem, Selection, StepInfo
from decoct.constructions.iterated_hilbert import IteratedHilbert
from decoct.constructions.uniform import Uniform

__all__ = [
    "Chosen",
    "Construction",
    "IteratedHilbert",
    "Problem",
    "Selection",
    "StepInfo",
    "Uniform",
]
