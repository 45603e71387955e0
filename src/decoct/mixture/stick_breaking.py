"""Priors of the mixture weights: the truncated stick-breaking process and the finite Dirichlet.

Stick-breaking (Blei & Jordan 2006): π_t = v_t Π_{i<t}(1 − v_i), v_t ~ Beta(1, α), truncated at T by
v_T = 1. With N_t the expected (weighted) rows of component t, q(v_t) = Beta(a_t, b_t), t < T:

    a_t = 1 + N_t,   b_t = α + Σ_{j>t} N_j,                                                     (S1)
    E ln v_t = ψ(a_t) − ψ(a_t + b_t),   E ln(1 − v_t) = ψ(b_t) − ψ(a_t + b_t),                  (S2)
    E ln π_t = E ln v_t + Σ_{i<t} E ln(1 − v_i),   E ln v_T = 0,                                (S3)
    KL_t = −ln α − ln B(a_t, b_t) + N_t E ln v_t + (b_t − α)E ln(1 − v_t),                      (S4)
    E π_t = a_t/(a_t + b_t) Π_{i<t} b_i/(a_i + b_i).                                            (S5)

The last two terms of (S4) add up to Σ_t N_t E ln π_t, what the rows gain, over all t.

Borsos, Bachem & Krause (2017), Alg. 2, prints (S1) and (S2) for t = T too, as scikit-learn has it;
§3.3 has v_t for t < T.

The finite Dirichlet (§3.2): π ~ Dir(α, ..., α), q(π) = Dir(c), c_t = α + N_t,

    E ln π_t = ψ(c_t) − ψ(Σc),   KL = ln B(α) − ln B(c) + Σ_t N_t E ln π_t,   E π_t = c_t/Σc.   (S6)

For both Σ_t N_t E ln π_t − KL is a difference of normalisers, ``log_evidence``.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import digamma, gammaln
from jaxtyping import Array, Float

Shares = Float[Any, "k T"]
"""Parameters of q(π): the rows (a, b) for sticks, one row c for the Dirichlet."""


class StickBreaking(eqx.Module):
    """The Dirichlet process truncated at T components; all but `mean` and `draw` is pure JAX."""

    concentration: float  # α > 0, fixed

    def update(self, counts: Float[Array, " T"]) -> Shares:
        """Return (a, b) of (S1) given N_t; the last stick is Beta(1 + N_T, 0), all at v_T = 1."""
        later = jnp.concatenate([jnp.cumsum(counts[::-1])[::-1][1:], jnp.zeros(1)])
        b = (self.concentration + later).at[-1].set(0.0)
        return jnp.stack([1.0 + counts, b])

    def expected_log(self, shares: Shares) -> Float[Array, " T"]:
        """Return E ln π_t (S3)."""
        log_v, log_rest = self._compute_log_sticks(shares)
        before = jnp.concatenate([jnp.zeros(1), jnp.cumsum(log_rest)])
        last = jnp.zeros(shares.shape[1] - len(log_v))
        return jnp.concatenate([log_v, last]) + before[: shares.shape[1]]

    def log_evidence(self, shares: Shares) -> Float[Array, ""]:
        """Return Σ_t N_t E ln π_t − KL(q(π)‖p(π)), for the best q(π) given N_t."""
        a, b = self._free(shares)
        of_a, of_b, of_both = gammaln(jnp.stack([a, b, a + b]))
        return (of_a + of_b - of_both).sum() + len(a) * jnp.log(self.concentration)

    def mean(self, shares: Shares) -> Float[np.ndarray, " T"]:
        """Return E π_t (S5); they sum to 1."""
        a, b = shares
        left = np.concatenate([np.ones(1), np.cumprod(b / (a + b))[:-1]])
        weights = a / (a + b) * left
        return weights / weights.sum()

    def draw(self, rng: np.random.Generator, shares: Shares, n: int) -> Float[np.ndarray, "n T"]:
        """Return n draws of π from q(π); each sums to 1."""
        a, b = self._free(shares)
        sticks = np.ones((n, shares.shape[1]))
        sticks[:, : len(a)] = rng.beta(a, b, size=(n, len(a)))
        left = np.cumprod(1.0 - sticks[:, :-1], axis=1)
        weights = sticks * np.concatenate([np.ones((n, 1)), left], axis=1)
        return weights / weights.sum(axis=1, keepdims=True)

    def _free(self, shares: Shares) -> Shares:
        """Return (a, b) of the sticks that are not fixed."""
        return shares[:, :-1]

    def _compute_log_sticks(self, shares: Shares) -> tuple[Float[Array, " s"], Float[Array, " s"]]:
        """Return E ln v_t and E ln(1 − v_t) of the sticks that are free (S2)."""
        a, b = self._free(shares)
        of_a, of_b, of_both = digamma(jnp.stack([a, b, a + b]))
        return of_a - of_both, of_b - of_both


class FiniteDirichlet(eqx.Module):
    """The finite mixture: π ~ Dir(α, ..., α), with the methods of `StickBreaking` (S6)."""

    concentration: float  # α > 0 of every component

    def update(self, counts: Float[Array, " T"]) -> Shares:
        return (self.concentration + counts)[None, :]

    def expected_log(self, shares: Shares) -> Float[Array, " T"]:
        return digamma(shares[0]) - digamma(shares[0].sum())

    def log_evidence(self, shares: Shares) -> Float[Array, ""]:
        c, alpha = shares[0], self.concentration
        log_beta = gammaln(c).sum() - gammaln(c.sum())
        return log_beta - len(c) * gammaln(alpha) + gammaln(len(c) * alpha)

    def mean(self, shares: Shares) -> Float[np.ndarray, " T"]:
        return shares[0] / shares[0].sum()

    def draw(self, rng: np.random.Generator, shares: Shares, n: int) -> Float[np.ndarray, "n T"]:
        return rng.dirichlet(shares[0], size=n)


WeightPrior = StickBreaking | FiniteDirichlet
"""A prior of the mixture weights."""
