"""Mixture models with their own fits and samplers: von Mises-Fisher clusters on the sphere."""

from decoct.mixture.vmf_em import EMResult, independent_conditionals, vmf_em
from decoct.mixture.vmf_mixture import VonMisesFisherMixture
from decoct.mixture.von_mises_fisher import log_normaliser, sample_vmf, vmf_draws

__all__ = [
    "EMResult",
    "VonMisesFisherMixture",
    "independent_conditionals",
    "log_normaliser",
    "sample_vmf",
    "vmf_draws",
    "vmf_em",
]
