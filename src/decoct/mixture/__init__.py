"""Mixture models with their own fits and samplers.

Von Mises-Fisher clusters on the sphere, and Dirichlet-process Gaussian mixtures as a scikit-learn
estimator.
"""

from typing import TYPE_CHECKING

from decoct.runtime import lazy_names

if TYPE_CHECKING:
    from decoct.mixture.building import build, estimate, path
    from decoct.mixture.coreset_fit import MixtureCoreset
    from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture
    from decoct.mixture.vmf.gibbs import Gibbs
    from decoct.mixture.vmf.vmf_fit import Conditionals, EMResult, independent_conditionals, vmf_em
    from decoct.mixture.vmf.vmf_mixture import VonMisesFisherMixture
    from decoct.mixture.vmf.von_mises_fisher import log_normaliser, sample_vmf, vmf_draws

__all__ = [
    "Conditionals",
    "DPGaussianMixture",
    "EMResult",
    "Gibbs",
    "MixtureCoreset",
    "VonMisesFisherMixture",
    "build",
    "estimate",
    "independent_conditionals",
    "log_normaliser",
    "path",
    "sample_vmf",
    "vmf_draws",
    "vmf_em",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "MixtureCoreset": "coreset_fit",
        "build": "building",
        "estimate": "building",
        "path": "building",
        "DPGaussianMixture": "dp_gaussian_mixture",
        "Conditionals": "vmf.vmf_fit",
        "EMResult": "vmf.vmf_fit",
        "Gibbs": "vmf.gibbs",
        "VonMisesFisherMixture": "vmf.vmf_mixture",
        "independent_conditionals": "vmf.vmf_fit",
        "log_normaliser": "vmf.von_mises_fisher",
        "sample_vmf": "vmf.von_mises_fisher",
        "vmf_draws": "vmf.von_mises_fisher",
        "vmf_em": "vmf.vmf_fit",
    },
)
