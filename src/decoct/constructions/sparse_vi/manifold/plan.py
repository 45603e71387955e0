"""What sets of draws cost, for the constructions that move along the manifold."""

from __future__ import annotations

from decoct.constructions.base import Plan, Problem


def draws_plan(
    problem: Problem,
    draws: int,
    sets: tuple[int, int],
    *,
    subsample: int | None,
    subsample_totals: bool,
    control_variates: bool,
) -> Plan:
    """Return the cost of so many sets of S draws, at least and at most.

    A set sees the candidates and the support; for the totals it passes over all rows at S draws,
    or, with a subsample and control variates, at 1 + 2 d potentials a row. Closed forms evaluate
    none of it and are counted as if they did.

    Parameters
    ----------
    draws
        S.
    sets
        Fewest and most sets.
    """
    n = problem.n_rows
    seen = min(n, subsample or n)
    a_set = float(draws * (seen + problem.size))
    passes = 1
    if not subsample_totals:
        a_set += float(draws * n) if subsample is not None else 0.0
    elif control_variates:
        a_set += float(n * (1 + 2 * problem.dim))
    else:
        passes = 0
    few, many = sets
    return Plan((few * passes, many * passes), (few * a_set, many * a_set), 24 * draws * seen)
