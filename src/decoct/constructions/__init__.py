"""Ways to choose rows and weights, one file each."""

from typing import TYPE_CHECKING

from decoct._lazy import lazy_names
from decoct.constructions.base import Chosen, Construction, Problem, Selection, StepInfo

if TYPE_CHECKING:
    from decoct.constructions.hilbert import Hilbert
    from decoct.constructions.iterated_hilbert import IteratedHilbert
    from decoct.constructions.l1_path import L1Path
    from decoct.constructions.lightweight import LightweightCoreset, lightweight_coreset
    from decoct.constructions.moment_matching import MomentMatching
    from decoct.constructions.sensitivity import Sensitivity
    from decoct.constructions.sparse_vi import SparseVI
    from decoct.constructions.uniform import Uniform

__all__ = [
    "Chosen",
    "Construction",
    "Hilbert",
    "IteratedHilbert",
    "L1Path",
    "LightweightCoreset",
    "MomentMatching",
    "Problem",
    "Selection",
    "Sensitivity",
    "SparseVI",
    "StepInfo",
    "Uniform",
    "lightweight_coreset",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Hilbert": "hilbert",
        "IteratedHilbert": "iterated_hilbert",
        "L1Path": "l1_path",
        "LightweightCoreset": "lightweight",
        "MomentMatching": "moment_matching",
        "Sensitivity": "sensitivity",
        "SparseVI": "sparse_vi",
        "Uniform": "uniform",
        "lightweight_coreset": "lightweight",
    },
)
