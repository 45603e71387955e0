"""Mixture models with their own fits and samplers.

Von Mises-Fisher clusters on the sphere, and Dirichlet-process Gaussian mixtures as a scikit-learn
estimator.
"""

from typing import TYPE_CHECKING

from decoct._lazy import lazy_names

if TYPE_CHECKING:
    from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture
    from decoct.mixture.vmf_fit import EMResult, independent_conditionals, vmf_em
    from decoct.mixture.vmf_mixture import VonMisesFisherMixture
    from decoct.mixture.von_mises_fisher import log_normaliser, sample_vmf, vmf_draws

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "DPGaussianMixture": "dp_gaussian_mixture",
        "EMResult": "vmf_fit",
        "VonMisesFisherMixture": "vmf_mixture",
        "independent_conditionals": "vmf_fit",
        "log_normaliser": "von_mises_fisher",
        "sample_vmf": "von_mises_fisher",
        "vmf_draws": "von_mises_fisher",
        "vmf_em": "vmf_fit",
    },
)
