"""The part of a certificate that searches for modes without draws.

`samplers.modes` has the equations and the limits of the search.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from decoct.coreset import Coreset
from decoct.passes.potentials import Potentials
from decoct.runtime.randomness import check_seed, host_rng
from decoct.samplers.base import Draws
from decoct.samplers.datatree import to_datatree
from decoct.samplers.modes import MOST_PARAMETERS, Modes, find_modes
from decoct.samplers.summary import scalars

SHARE = 0.01
"""Share of the posterior's mass above which a mode without draws decides the verdict."""

APART = 3.0
"""Standard deviations of the draws by which a parameter of two modes differs to be named."""


class OtherMode(NamedTuple):
    """A mode of the full posterior that has no draws.

    Attributes
    ----------
    share
        Its part of the mass of all modes found.
    parameters
        Names of the parameters by which it differs from the mode of the draws, the
        largest difference first.

    Examples
    --------
    >>> from decoct.certificates.mode_probe import OtherMode
    >>> OtherMode(share=0.3, parameters=("beta[0]",)).share
    0.3
    """

    share: float
    parameters: tuple[str, ...]


class ModeSearch(NamedTuple):
    """Result of a search for other modes.

    Attributes
    ----------
    searches
        Starts from which it ended at a maximum; None for a model that is too large to search.
    others
        Modes without draws that have more than 1 % of the mass, the largest first.

    Examples
    --------
    >>> from decoct.certificates.mode_probe import ModeSearch
    >>> ModeSearch(searches=20).caveat
    '20 searches for other modes found none with 1 % of the mass'
    """

    searches: int | None
    others: tuple[OtherMode, ...] = ()

    @property
    def caveat(self) -> str:
        """What the search leaves open, as a clause."""
        if self.searches is None:
            return f"modes are not searched for beyond {MOST_PARAMETERS} parameters"
        if not self.searches:
            return "no search for other modes ended at a maximum"
        found = f"{len(self.others)} without draws" if self.others else "none with 1 % of the mass"
        return f"{self.searches} searches for other modes found {found}"


class ModeProbe:
    """Maxima of π_w whose potentials the certificate's pass evaluates.

    The draws come chain by chain; the seed decides where searches start.
    """

    def __init__(self, coreset: Coreset, draws: Float[np.ndarray, "S d"], seed: int) -> None:
        self._coreset, self._draws = coreset, draws
        self._modes: Modes | None = None
        self._is_small = coreset.dim <= MOST_PARAMETERS
        if self._is_small:
            rng = host_rng(jax.random.key(check_seed(seed)))
            self._modes = find_modes(coreset.density, draws, rng)

    @property
    def points(self) -> Float[np.ndarray, "k d"]:
        """Where all rows are to be evaluated: at all modes, if one of them has no draws."""
        if self._modes is None or (self._modes.draws > 0).all():
            return self._draws[:0]
        return self._modes.z

    def weigh_modes(self, potentials: Potentials, totals: Float[np.ndarray, " k"]) -> ModeSearch:
        """Return what Σ_n f_n at `points` says of the modes' masses."""
        if self._modes is None:
            return ModeSearch(0 if self._is_small else None)
        if not len(totals):
            return ModeSearch(self._modes.searches)
        shares = self._modes.shares(totals + potentials.log_prior(self.points))
        shares[self._modes.draws > 0] = 0.0
        order = [k for k in np.argsort(-shares) if shares[k] > SHARE]
        names = [self._differing(self._modes.z[k]) for k in order]
        others = (OtherMode(float(shares[k]), name) for k, name in zip(order, names, strict=True))
        return ModeSearch(self._modes.searches, tuple(others))

    def _differing(self, z: Float[np.ndarray, " d"]) -> tuple[str, ...]:
        assert self._modes is not None
        home = self._modes.z[np.argmax(self._modes.draws)]
        both = np.concatenate([[home, z], self._draws])
        coreset, given = self._coreset, Draws(both[None], "given")
        named = to_datatree(coreset.model, coreset.density.space, coreset.rows, given)
        found = dict(scalars(named))
        apart = {
            name: abs(values[0, 1] - values[0, 0]) / values[0, 2:].std()
            for name, values in found.items()
            if np.ptp(values[0, 2:]) > 0.0
        }
        order = sorted(apart, key=lambda name: -apart[name])
        return tuple(name for name in order if apart[name] >= min(APART, apart[order[0]]))
