"""Ways to choose rows and weights, one file each."""

from typing import TYPE_CHECKING

from decoct.constructions.base import Construction, Problem, Selection, SizedSelection, StepInfo
from decoct.runtime import lazy_names

if TYPE_CHECKING:
    from decoct.constructions.hilbert.hilbert import Hilbert
    from decoct.constructions.hilbert.moment_matching import MomentMatching
    from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
    from decoct.constructions.sampling.lightweight import LightweightCoreset, lightweight_coreset
    from decoct.constructions.sampling.sensitivity import Sensitivity
    from decoct.constructions.sampling.uniform import Uniform
    from decoct.constructions.sparse_vi.gradient_update import Gradient
    from decoct.constructions.sparse_vi.l1_path import L1Path
    from decoct.constructions.sparse_vi.sparse_vi import SparseVI
    from decoct.constructions.sparse_vi.weight_updates import Quadratic

__all__ = [
    "Construction",
    "Gradient",
    "Hilbert",
    "IteratedHilbert",
    "L1Path",
    "LightweightCoreset",
    "MomentMatching",
    "Problem",
    "Quadratic",
    "Selection",
    "Sensitivity",
    "SizedSelection",
    "SparseVI",
    "StepInfo",
    "Uniform",
    "lightweight_coreset",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Gradient": "sparse_vi.gradient_update",
        "Hilbert": "hilbert.hilbert",
        "IteratedHilbert": "iterated_hilbert.iterated_hilbert",
        "L1Path": "sparse_vi.l1_path",
        "LightweightCoreset": "sampling.lightweight",
        "MomentMatching": "hilbert.moment_matching",
        "Quadratic": "sparse_vi.weight_updates",
        "Sensitivity": "sampling.sensitivity",
        "SparseVI": "sparse_vi.sparse_vi",
        "Uniform": "sampling.uniform",
        "lightweight_coreset": "sampling.lightweight",
    },
)
