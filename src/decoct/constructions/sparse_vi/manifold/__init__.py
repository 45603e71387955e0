"""What the manifold of coreset posteriors looks like at one point: draws or closed forms."""

from decoct.constructions.sparse_vi.manifold.base import LocalView, Manifold, Origin
from decoct.constructions.sparse_vi.manifold.choice import (
    has_closed_form,
    manifold_of,
    warm_started,
)
from decoct.constructions.sparse_vi.manifold.gaussian import GaussianManifold
from decoct.constructions.sparse_vi.manifold.linear import LinearManifold
from decoct.constructions.sparse_vi.manifold.prior import require_proper_prior
from decoct.constructions.sparse_vi.manifold.sampled import SampledManifold

__all__ = [
    "GaussianManifold",
    "LinearManifold",
    "LocalView",
    "Manifold",
    "Origin",
    "SampledManifold",
    "has_closed_form",
    "manifold_of",
    "require_proper_prior",
    "warm_started",
]
