"""The certificate that an evaluation needs, of the same coreset and the same draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from decoct.certificates.certificate import (
    CORRECTED,
    Certificate,
    check,
    fingerprint_of,
    table_of,
)
from decoct.coreset import Coreset, require_coreset
from decoct.errors import RequestError
from decoct.samplers.datatree import unconstrained
from decoct.stats.verdict import Grade

FEWEST_EVALUATED, FEWEST_A_CHAIN = 100, 4
"""Draws, and draws a chain, below which nothing is estimated."""


def check_draws(
    coreset: Coreset, draws: xr.DataTree | np.ndarray
) -> Float[np.ndarray, "chains S d"]:
    """Return flat unconstrained draws; refuse too few, equal, or already corrected ones."""
    require_coreset(coreset)
    z = unconstrained(draws, coreset.dim, coreset.fingerprint)
    refuse_corrected(draws)
    chains, count = z.shape[:2]
    if chains * count < FEWEST_EVALUATED or count < FEWEST_A_CHAIN:
        raise RequestError(
            f"There are {chains * count} draws, in {chains} chains of {count}; at least "
            f"{FEWEST_EVALUATED}, and {FEWEST_A_CHAIN} a chain, are needed. An array has the shape "
            "(chains, draws, parameters)."
        )
    require_moving(z)
    return z


def are_corrected(draws: Any) -> bool:
    """Return whether a certificate has corrected these draws."""
    return isinstance(draws, xr.DataTree) and CORRECTED in draws["posterior"].attrs


def refuse_corrected(draws: Any) -> None:
    """Refuse draws that a certificate would correct again."""
    if are_corrected(draws):
        raise RequestError(
            "These draws are already corrected towards the full posterior; give the draws as they "
            "were sampled, and their certificate: check=."
        )


def require_moving(z: Float[np.ndarray, "chains S d"]) -> None:
    """Refuse draws of which a parameter is the same in all."""
    if (np.ptp(z, axis=(0, 1)) == 0.0).any():
        raise RequestError("A parameter has one value in all draws: the sampler did not move.")


def certificate_of(
    coreset: Coreset,
    rows: Any,
    draws: xr.DataTree | np.ndarray,
    given: Certificate | None,
    seed: int,
    progress: bool | None,
) -> Certificate:
    """Return the certificate of these draws, the given one or one made here; refuse a bad one."""
    if given is None:
        if rows is None:
            raise RequestError(
                "Give the rows that the coreset was built from, or check=decoct.check(coreset, "
                "rows, draws)."
            )
        given = check(coreset, rows, draws, seed=seed, progress=progress)
    else:
        if rows is not None:
            table_of(coreset, rows, progress)
        require_same(coreset, unconstrained(draws, coreset.dim), given)
    if given.grade is Grade.REFUSED:
        raise RequestError(
            f"The certificate's verdict is '{given.verdict}', so nothing is estimated from these "
            "draws; build a larger coreset, or sample again."
        )
    return given


def require_same(coreset: Coreset, z: Float[np.ndarray, "chains S d"], given: Certificate) -> None:
    """Refuse a certificate that is not of this coreset and these draws."""
    if not isinstance(given, Certificate):
        raise RequestError(
            f"check must be a certificate from decoct.check, not a {type(given).__name__}."
        )
    if given.fingerprint != fingerprint_of(coreset, z):
        raise RequestError(
            "This coreset and these draws are not the ones that were checked; give those, or rows= "
            "in place of check=."
        )
