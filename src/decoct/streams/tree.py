"""Merge-and-reduce: a binary counter of coresets over the leaves of a stream.

Leaf k (from 1) meets the parts of the levels 0 … t − 1, t the number of trailing zeros of k in
binary, and all of them become one part of level t in a single compression: every level holds at
most one part, and a row is compressed at most log₂ of the number of leaves times.

The draws are of the posterior of *all* rows held, not of the leaf's own: the final posterior is
that narrow, and it lies about there. They serve until that posterior has moved on by `STALE` nats
a parameter, as measured by the log ratios at the draws themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jaxtyping import Float

from decoct.constructions.base import Problem
from decoct.models.base import AbstractModel
from decoct.passes.potentials import Potentials
from decoct.runtime.randomness import host_rng
from decoct.samplers.base import Sampler
from decoct.streams.compress import Leaf, Look
from decoct.streams.part import Part, joined

STALE = 0.25
"""½Var of the log ratio between the posterior now and that of the draws, in nats a parameter, from
which on there are new draws. It lets the number of rows grow by about a third."""


@dataclass(frozen=True)
class Plan:
    """Sizes of merge-and-reduce.

    Attributes
    ----------
    leaf
        Rows that are compressed at once.
    node
        Rows a part keeps.
    draws
        S, four fifths to fit and one fifth held out.
    pool
        Candidate rows of a leaf.
    exchanges
        Most sweeps of swaps.
    reach
        Posterior sd up to which the parts are to be right as well; 1 for the draws alone.
    """

    leaf: int
    node: int
    draws: int
    pool: int
    exchanges: int
    reach: float


@dataclass(frozen=True)
class Engine:
    """What compresses: the model, the sampler, the key and the plan."""

    model: AbstractModel
    sampler: Sampler
    key: jax.Array
    plan: Plan


@dataclass(frozen=True)
class Reference:
    """Draws of the posterior of all rows held at one time.

    Attributes
    ----------
    draws : (S, d)
        In random order.
    far : (T, d)
        A quarter as many, flung out from the mean.
    totals : (S,)
        Log-likelihood, at the draws, of the rows they are the posterior of.
    """

    draws: Float[np.ndarray, "S d"]
    far: Float[np.ndarray, "T d"]
    totals: Float[np.ndarray, " S"]

    def is_stale(self, totals: Float[np.ndarray, " S"]) -> bool:
        """Say whether the posterior with these log-likelihoods has moved on."""
        moved = 0.5 * float(np.var(totals - self.totals))
        return not moved <= STALE * self.draws.shape[1]


@dataclass(frozen=True)
class Tally:
    """What the tree cost and lost.

    Attributes
    ----------
    evaluations
        Potentials evaluated.
    refreshed
        Times that there were new draws.
    near_only
        Looks without far draws, where a potential was not finite.
    losses
        By level: compressions to that level, and the sum of their predicted KLs in nats.
    """

    evaluations: int = 0
    refreshed: int = 0
    near_only: int = 0
    losses: tuple[tuple[int, float], ...] = ()

    def with_loss(self, level: int, kl: float) -> Tally:
        """Return the tally with one more compression."""
        losses = [*self.losses, *[(0, 0.0)] * (level + 1 - len(self.losses))]
        losses[level] = (losses[level][0] + 1, losses[level][1] + kl)
        return replace(self, losses=tuple(losses))


@dataclass(frozen=True)
class Tree:
    """The parts, by level.

    Attributes
    ----------
    levels
        Part or None; a part of level l stands for 2^l leaves. Younger rows are on lower levels.
    leaves
        Leaves so far.
    reference
        The draws in use; None before the first leaf.
    tally
        What it cost.
    """

    levels: tuple[Part | None, ...] = ()
    leaves: int = 0
    reference: Reference | None = None
    tally: Tally = Tally()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in the order of the stream."""
        return tuple(part for part in reversed(self.levels) if part is not None)

    def grown(self, engine: Engine, leaf: Leaf) -> Tree:
        """Return the tree with one more leaf."""
        plan, parts = engine.plan, self.parts
        level = _trailing(self.levels)
        tree, look = self.looking(engine, leaf)
        carried = range(len(parts) - level, len(parts))
        part, kl = look.compressed(carried, plan.node, plan.exchanges)
        levels = [*self.levels, None] if level == len(self.levels) else list(self.levels)
        levels[: level + 1] = [*[None] * level, part]
        tally = tree.tally.with_loss(level, kl)
        return replace(tree, levels=tuple(levels), leaves=self.leaves + 1, tally=tally)

    def looking(self, engine: Engine, leaf: Leaf) -> tuple[Tree, Look]:
        """Return all rows held and the leaf at the draws, and the tree with draws that fit them."""
        draw_key, pool_key = jax.random.split(jax.random.fold_in(engine.key, self.leaves))
        plan, spent = engine.plan, 0
        if self.reference is not None:
            old = self.reference
            look = Look.at(pool_key, engine.model, leaf, self.parts, old.draws, old.far, plan.pool)
            if not old.is_stale(look.near.totals(look.everything)):
                return self._looked(look, old, look.evaluations), look
            spent = look.evaluations
        draws, far = self._drawn(draw_key, engine, leaf)
        look = Look.at(pool_key, engine.model, leaf, self.parts, draws, far, plan.pool)
        reference = Reference(draws, far, look.near.totals(look.everything))
        return self._looked(look, reference, spent + look.evaluations), look

    def _looked(self, look: Look, reference: Reference, spent: int) -> Tree:
        tally = self.tally
        tally = replace(
            tally,
            evaluations=tally.evaluations + spent,
            refreshed=tally.refreshed + (reference is not self.reference),
            near_only=tally.near_only + (look.far is None and len(reference.far) > 0),
        )
        return replace(self, reference=reference, tally=tally)

    def _drawn(
        self, key: jax.Array, engine: Engine, leaf: Leaf
    ) -> tuple[Float[np.ndarray, "S d"], Float[np.ndarray, "T d"]]:
        """Draw from the posterior of all rows held and the leaf; the draws, and some flung out."""
        draw_key, order_key = jax.random.split(key)
        plan, rng = engine.plan, host_rng(order_key)
        problem = Problem(Potentials(engine.model, leaf.rows), engine.sampler, (plan.node,))
        held = [part.selection for part in self.parts]
        start = None if self.reference is None else self.reference.draws.mean(axis=0)
        selection = joined([*held, leaf.part().selection])
        draws = problem.draw(draw_key, selection, plan.draws, start).flat[: plan.draws]
        if start is not None:
            draws = engine.model.relabelled(draws, start)
        # Chains come one after the other; mixed up, the fitted and the held-out see all of them.
        draws = draws[rng.permutation(len(draws))]
        centre = draws.mean(axis=0)
        few = len(draws) // 4 if plan.reach > 1.0 else 0
        factors = np.exp(rng.uniform(0.0, np.log(plan.reach), size=(few, 1)))
        return draws, centre + factors * (draws[:few] - centre)


def _trailing(levels: Sequence[Part | None]) -> int:
    """Return the lowest free level."""
    free = [level for level, part in enumerate(levels) if part is None]
    return free[0] if free else len(levels)
