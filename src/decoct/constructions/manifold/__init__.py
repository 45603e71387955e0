"""What the manifold of coreset posteriors looks like at one point: draws or closed forms."""

from decoct.constructions.manifold.base import LocalView, Manifold, Origin
from decoct.constructions.manifold.choice import has_closed_form, manifold_of, near
from decoct.constructions.manifold.gaussian import GaussianManifold
from decoct.constructions.manifold.linear import LinearManifold
from decoct.constructions.manifold.prior import require_proper_prior
from decoct.constructions.manifold.sampled import SampledManifold

__all__ = [
    "GaussianManifold",
    "LinearManifold",
    "LocalView",
    "Manifold",
    "Origin",
    "SampledManifold",
    "has_closed_form",
    "manifold_of",
    "near",
    "require_proper_prior",
]
