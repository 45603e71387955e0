"""Mixture models with their own fits and samplers.

Von Mises-Fisher clusters on the sphere, and Dirichlet-process Gaussian mixtures as a scikit-learn
estimator, which is loaded when first used: it imports scikit-learn.
"""

from typing import TYPE_CHECKING, Any

from decoct.mixture.vmf_em import EMResult, independent_conditionals, vmf_em
from decoct.mixture.vmf_mixture import VonMisesFisherMixture
from decoct.mixture.von_mises_fisher import log_normaliser, sample_vmf, vmf_draws

if TYPE_CHECKING:
    from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture

__all__ = [
    "DPGaussianMixture",
    "EMResult",
    "VonMisesFisherMixture",
    "independent_conditionals",
    "log_normaliser",
    "sample_vmf",
    "vmf_draws",
    "vmf_em",
]


def __getattr__(name: str) -> Any:
    if name != "DPGaussianMixture":
        raise AttributeError(f"module 'decoct.mixture' has no attribute '{name}'")
    from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture

    return DPGaussianMixture
