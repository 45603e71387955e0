"""The theorems' bounds, printed for a user's own rows, are above what is achieved."""

import numpy as np
import pytest

import decoct
from decoct import solvers
from decoct.constructions import Hilbert, Uniform
from decoct.errors import RequestError
from decoct.models import LogisticRegression

SIZES = [1, 4, 20, 60]


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    return {"x": x, "y": (rng.random(400) < 1 / (1 + np.exp(-x @ [1.0, -1.0, 0.5]))).astype(int)}


@pytest.mark.parametrize("norm", ["l2", "fisher"])
@pytest.mark.parametrize(
    ("solver", "kind"),
    [
        (solvers.FrankWolfe(), "frank_wolfe"),
        (solvers.FrankWolfe(step="fixed"), "fixed_step"),
        (solvers.ImportanceSampling(), "importance_sampling"),
    ],
)
def test_achieved_errors_are_below_every_bound(rows, norm, solver, kind):
    method = Hilbert(solver, norm=norm, draws=50)
    table = decoct.hilbert_bounds(LogisticRegression(), rows, SIZES, method=method, seed=3)
    judged = [row for row in table.rows if row.achieved is not None]
    assert {row.method for row in judged} == {kind}
    assert sorted({row.size for row in judged}) == SIZES
    for row in judged:
        # Eq. 4.1 is an expectation, not a bound
        assert row.achieved <= row.bound or "expected" in row.name
    assert "η̄" in str(table)


def test_errors_are_those_of_the_build_with_that_seed(rows):
    method = Hilbert(solvers.FrankWolfe(), draws=50)
    table = decoct.hilbert_bounds(LogisticRegression(), rows, [20], method=method, seed=5)
    built = decoct.build(LogisticRegression(), rows, size=20, method=method, seed=5)
    achieved = next(row.achieved for row in table.rows if row.achieved is not None)
    relative = built.report.rounds[0]["relative_error"]
    whole = decoct.hilbert_bounds(LogisticRegression(), rows, [1], method=method, seed=5)
    assert whole.geometry.sigma == table.geometry.sigma
    # σ²(1 − η²) = ‖Σ v_n‖²
    g = table.geometry
    assert achieved == pytest.approx(relative * g.sigma * np.sqrt(1 - g.eta**2), rel=1e-6)


def test_what_theory_does_not_speak_of(rows):
    others = (
        Hilbert(solvers.GIGA()),
        Hilbert(solvers.FrankWolfe("away")),
        Uniform(),
    )
    for method in others:
        with pytest.raises(RequestError, match="theorems are about"):
            decoct.hilbert_bounds(LogisticRegression(), rows, [5], method=method)
    more = Hilbert(solvers.FrankWolfe(), iterations=3)
    with pytest.raises(RequestError, match="leave out iterations="):
        decoct.hilbert_bounds(LogisticRegression(), rows, [5], method=more)
    for sizes in ([], [0], [1.5], "five"):
        with pytest.raises(RequestError, match=r"sizes is empty|size must be a whole number"):
            decoct.hilbert_bounds(
                LogisticRegression(), rows, sizes, method=Hilbert(solvers.FrankWolfe())
            )
    with pytest.raises(RequestError, match="parts must be between"):
        decoct.hilbert_bounds(
            LogisticRegression(), rows, [5], method=Hilbert(solvers.FrankWolfe()), parts=0
        )
    small = Hilbert(solvers.FrankWolfe(), pool=50)
    with pytest.raises(RequestError, match="of 400 rows are candidates"):
        decoct.hilbert_bounds(LogisticRegression(), rows, [5], method=small)


@pytest.mark.parametrize("solver", [solvers.FrankWolfe(), solvers.ImportanceSampling()])
def test_merged_parts_are_below_their_bounds(rows, solver):
    method = Hilbert(solver, draws=50)
    table = decoct.hilbert_bounds(LogisticRegression(), rows, SIZES, method=method, parts=4)
    judged = [row for row in table.rows if row.achieved is not None]
    assert {row.method.removeprefix("merged_") for row in judged} < {
        "frank_wolfe",
        "importance_sampling",
    }
    assert len(judged) == len(SIZES)
    assert all(row.achieved <= row.bound for row in judged)
