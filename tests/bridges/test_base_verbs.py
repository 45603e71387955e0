"""compare, estimate and the report on bridge models, beside a hand-written model of the posterior.

The NumPyro and the PyMC model are logistic regressions with priors N(0, 2²), as
``LogisticRegression(prior_scale=2)`` is: the same potentials and the same prior on the same three
parameters, so that whatever depends on them and on the seed alone must come out the same. Sizes are
below d(d+3)/2 = 9: from there on rows that match equally well are told apart by rounding.
"""

import numpy as np
import pytest

import decoct
from decoct.constructions import (
    Hilbert,
    IteratedHilbert,
    MomentMatching,
    Sensitivity,
    SparseVI,
    Uniform,
)
from decoct.models import LogisticRegression
from decoct.samplers import Laplace
from decoct.solvers import GIGA
from tests.bridges.numpyro_zoo import logistic as numpyro_logistic
from tests.bridges.numpyro_zoo import logistic_rows
from tests.bridges.pymc_import import quiet

ROWS = logistic_rows(2000)
SIZES = [5, 8]
# rows alone: by hand there is a linear predictor, whose expansions differ from a bridge's
METHODS = {"uniform": Uniform(), "iterated": IteratedHilbert(site=False, draws=200, pool=300)}
COMPARED = METHODS | {
    "sensitivity": Sensitivity(),
    "GIGA": Hilbert(GIGA(), draws=100),
    "SparseVI": SparseVI(draws=100),
    "moments": MomentMatching(pool=300),
}
LAPLACE = Laplace(judge=False)


def numpyro_bridge():
    return decoct.from_numpyro(numpyro_logistic, ROWS)


def pymc_bridge():
    from tests.bridges.pymc_zoo import logistic

    return decoct.from_pymc(logistic(ROWS["x"], ROWS["y"]))


@pytest.fixture(scope="module")
def by_hand():
    return decoct.compare(
        LogisticRegression(prior_scale=2.0),
        ROWS,
        SIZES,
        methods=COMPARED,
        sampler=LAPLACE,
        draws=200,
    )


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(numpyro_bridge, id="numpyro"),
        pytest.param(pymc_bridge, id="pymc", marks=quiet),
    ],
)
def bridge(request):
    import jax

    with jax.numpy_rank_promotion("allow"):
        return request.param()


def test_compare_has_the_figures_of_the_hand_written_model(bridge, by_hand):
    """Equal rows, seeds and draws: equal figures, up to the rounding of sums and of modes.

    Modes are found from different starting points, to 1e-8 of an sd or so. Sensitivities are known
    by hand only, and the bridge's line says so without a change to any other.
    """
    result = decoct.compare(
        bridge, bridge.rows, SIZES, methods=COMPARED, sampler=LAPLACE, draws=200
    )
    (refused,) = (line.note for line in result.lines if line.note)
    assert "use IteratedHilbert or Hilbert, which fit any model" in refused
    lines = [line for line in result.lines if line.method != "sensitivity"]
    by_hand = [line for line in by_hand.lines if line.method != "sensitivity"]
    assert [line.method for line in lines] == [line.method for line in by_hand]
    for line, wanted in zip(lines, by_hand, strict=True):
        assert line.note == wanted.note == ""
        assert (line.size, line.rows, line.evaluations) == (
            wanted.size,
            wanted.rows,
            wanted.evaluations,
        )
        assert line.kl == pytest.approx(wanted.kl, rel=1e-6, abs=1e-12)
        assert line.ess == pytest.approx(wanted.ess, rel=1e-6)
    assert {line.method for line in lines if line.kl > 1e-4} >= {*COMPARED} - {"sensitivity"}


@pytest.mark.parametrize("method", list(METHODS.values()), ids=list(METHODS))
def test_estimate_counts_what_the_report_counts(bridge, method):
    """Passes between the bounds; potentials to 10 %, for the pool's rows are a matter of chance."""
    options = {"size": 20, "method": method, "sampler": LAPLACE}
    cost = decoct.estimate(bridge, bridge.rows, **options)
    report = decoct.build(bridge, bridge.rows, **options).report
    assert cost.n_rows == len(ROWS["y"])
    assert cost.passes[0] <= report.passes <= cost.passes[1]
    low, high = cost.likelihood_evaluations
    assert 0.9 * low <= report.evaluations / cost.n_rows <= 1.1 * high
    hand = decoct.estimate(LogisticRegression(prior_scale=2.0), ROWS, **options)
    assert (cost.passes, cost.likelihood_evaluations) == (hand.passes, hand.likelihood_evaluations)


def test_the_report_certifies_and_names_the_bridge(bridge, tmp_path):
    pytest.importorskip("matplotlib")
    options = {"size": 8, "method": METHODS["iterated"], "sampler": LAPLACE, "seed": 1}
    coreset = decoct.build(bridge, bridge.rows, **options)
    draws = coreset.sample(draws=100, chains=2, sampler=LAPLACE)
    check = decoct.write_report(coreset, bridge.rows, draws, path=tmp_path / "a.html")
    assert check.kl == decoct.check(coreset, bridge.rows, draws).kl
    hand = decoct.build(LogisticRegression(prior_scale=2.0), ROWS, **options)
    z = draws["unconstrained_posterior"]["z"].to_numpy()
    # the same rows are kept and the same draws are judged
    np.testing.assert_array_equal(coreset.indices, hand.indices)
    assert check.kl == pytest.approx(decoct.check(hand, ROWS, z).kl, rel=1e-6, abs=1e-12)
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert check.verdict[1:] in page
    kind = coreset.model.kind
    assert f"model = decoct.from_{kind}(" in page
    assert f"seed={coreset.report.seed})" in page
    named = draws["posterior"]["odds"].to_numpy()[..., 2]
    assert f"<td>odds[2]</td><td>{named.mean():.4g}</td>" in page
    # what a sampler of the framework gives, made unconstrained, goes the same way
    flat = bridge.unconstrain({"beta": draws["posterior"]["beta"].to_numpy()})
    again = decoct.write_report(coreset, bridge.rows, flat, path=tmp_path / "b.html")
    assert again.kl == check.kl
    assert (tmp_path / "b.html").read_text(encoding="utf-8") == page
