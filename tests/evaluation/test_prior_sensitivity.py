"""Posteriors under other priors against closed forms and rebuilt coresets, and power scaling."""

import json
from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arviz_base import from_dict
from arviz_stats.psense import psense_summary

import decoct
from decoct.constructions import IteratedHilbert
from decoct.errors import CoresetFileError, RequestError
from decoct.evaluation.natural_scale import log_jacobians
from decoct.models import GaussianMean, LogisticRegression
from decoct.models.parameters import ParameterSpace
from decoct.samplers import Exact
from decoct.stats import Gaussian, kl_gaussian
from tests.problems import LOGISTIC, MODEL, coreset, draws

POINTS = np.random.default_rng(0).normal(loc=[1.0, -1.0], size=(50, 2))
MEAN = GaussianMean(np.eye(2))
WIDE = GaussianMean(np.eye(2), prior_covariance=10.0)
FAR = GaussianMean(np.eye(2), prior_mean=4.0, prior_covariance=0.02)


@cache
def rough():
    """A coreset that is off by 0.03 nats, which a certificate corrects."""
    return off_by(1.0, 0.1)


def off_by(linear, share):
    """Return a site with a linear term that is too large, and a precision that is too small."""
    good = decoct.build(MEAN, {"x": POINTS}, size=0, method=IteratedHilbert(site=True))
    precision = (1.0 - share) * good.site.precision
    return replace(
        good, site=replace(good.site, linear=good.site.linear + linear, precision=precision)
    )


@cache
def rough_draws(seed=1):
    return rough().sample(draws=1000, chains=2, sampler=Exact(), seed=seed)


@cache
def certificate():
    return decoct.check(rough(), {"x": POINTS}, rough_draws(), max_draws=2000)


@cache
def found():
    return decoct.prior_sensitivity(rough(), rough_draws(), {"wide": WIDE}, check=certificate())


def posterior(prior_mean=0.0, variance=1.0):
    precision = len(POINTS) + 1.0 / variance
    mean = (POINTS.sum(axis=0) + prior_mean / variance) / precision
    return Gaussian(mean, np.eye(2) / precision)


def assert_moves(moves, old, new):
    for d, move in enumerate(moves):
        shift = (new.mean[d] - old.mean[d]) / old.sd[d]
        assert move.mean_shift == pytest.approx(shift, abs=4.0 * move.mean_shift_se)
        assert move.sd_ratio == pytest.approx(new.sd[d] / old.sd[d], abs=4.0 * move.sd_ratio_se)


def test_reweighted_draws_have_the_closed_form():
    (wide,) = found().priors
    assert wide.reweighted
    assert [move.parameter for move in wide.moves] == ["mean[x[0]]", "mean[x[1]]"]
    assert_moves(wide.moves, posterior(), posterior(variance=10.0))
    assert max(move.mean_shift_se for move in wide.moves) < 0.02
    assert wide.kl == pytest.approx(kl_gaussian(posterior(variance=10.0), posterior()), rel=0.2)


def test_errors_are_calibrated():
    """Over 40 keys: the draws of both posteriors are the same, and their errors are not."""
    old, new, pulls = posterior(), posterior(variance=10.0), []
    for seed in range(40):
        given = rough_draws(seed)
        check = decoct.check(rough(), {"x": POINTS}, given)
        one = decoct.prior_sensitivity(rough(), given, {"wide": WIDE}, check=check)
        move = one.priors[0].moves[0]
        shift = (new.mean[0] - old.mean[0]) / old.sd[0]
        ratio = new.sd[0] / old.sd[0]
        pulls.append(
            (
                (move.mean_shift - shift) / move.mean_shift_se,
                (move.sd_ratio - ratio) / move.sd_ratio_se,
            )
        )
    assert (np.abs(np.mean(pulls, axis=0)) < 4.0 / np.sqrt(40)).all()
    assert (np.std(pulls, axis=0) < 1.5).all()
    assert (np.std(pulls, axis=0) > 0.6).all()


def test_a_prior_that_is_far_has_new_draws_of_the_same_coreset():
    """Reweighting does not reach it; the M rows and the site with the other prior do."""
    close = off_by(0.1, 0.01)
    given = close.sample(draws=1000, chains=2, sampler=Exact())
    certified = decoct.prior_sensitivity(close, given, {"far": FAR}, rows={"x": POINTS})
    (far,) = certified.priors
    assert far.khat > 0.7
    assert not far.reweighted
    assert np.isnan(far.kl)
    assert far.new_draws in ("good", "usable")
    assert_moves(far.moves, posterior(), posterior(4.0, 0.02))
    assert f"new draws, {far.new_draws}" in repr(certified)
    blind = decoct.prior_sensitivity(rough(), rough_draws(), {"far": FAR}, check=certificate())
    assert blind.priors[0].new_draws == "not certified"
    assert blind.priors[0].khat > 0.7


def test_new_draws_that_a_certificate_refuses_have_no_figures():
    """Rows alone say little of where another prior leads."""
    rows_alone = decoct.constructions.IteratedHilbert(site=False)
    few = decoct.build(MODEL, LOGISTIC, size=16, method=rows_alone)
    few = replace(few, weights=few.weights * np.linspace(0.98, 1.02, few.size))
    given = few.sample(draws=300, chains=2, warmup=200)
    assert decoct.check(few, LOGISTIC, given).ok

    def far(params):
        return -0.5 * ((params["beta"] - 4.0) ** 2).sum() / 0.003

    (refused,) = decoct.prior_sensitivity(few, given, {"far": far}, rows=LOGISTIC).priors
    assert refused.new_draws == "do not use"
    assert refused.moves == ()


def test_a_rebuilt_coreset_agrees():
    """The other prior's own coreset, certified by all rows, with draws of its own."""
    narrow = LogisticRegression(prior_scale=0.3)
    check = decoct.check(coreset(), LOGISTIC, draws())
    one = decoct.prior_sensitivity(coreset(), draws(), {"narrow": narrow}, check=check).priors[0]
    assert one.reweighted
    rebuilt = decoct.build(narrow, LOGISTIC, size=20)
    theirs = rebuilt.sample(draws=300, chains=2, warmup=200, seed=2)
    assert decoct.check(rebuilt, LOGISTIC, theirs).ok
    old, new = (tree["posterior"]["beta"].to_numpy().reshape(-1, 3) for tree in (draws(), theirs))
    for d, move in enumerate(one.moves):
        shift = (new[:, d].mean() - old[:, d].mean()) / old[:, d].std()
        assert move.mean_shift == pytest.approx(shift, abs=4.0 * np.hypot(0.08, move.mean_shift_se))
        ratio = new[:, d].std() / old[:, d].std()
        assert move.sd_ratio == pytest.approx(ratio, abs=4.0 * np.hypot(0.06, move.sd_ratio_se))
    assert abs(one.moves[0].mean_shift) > 0.3


def test_a_function_is_a_prior_up_to_a_constant():
    def log_prior(params):
        return -0.5 * (params["mean"] ** 2).sum() / 10.0 + 7.0

    priors = [WIDE, log_prior]
    both = decoct.prior_sensitivity(rough(), rough_draws(), priors, check=certificate()).priors
    assert [one.name for one in both] == ["prior 1", "prior 2"]
    assert both[0].khat == pytest.approx(both[1].khat, abs=1e-6)
    assert both[0].kl == pytest.approx(both[1].kl, abs=1e-9)
    np.testing.assert_allclose(both[0].moves[0][1:], both[1].moves[0][1:], rtol=1e-8)


def test_the_model_s_own_prior_changes_nothing():
    check = decoct.check(coreset(), LOGISTIC, draws())
    one = decoct.prior_sensitivity(coreset(), draws(), {"same": MODEL}, check=check).priors[0]
    assert one.kl < 1e-10
    assert all(abs(move.mean_shift) < 1e-6 for move in one.moves)


def test_power_scaling_is_arviz_s():
    """With equal weights the numbers are those of ArviZ at the same draws."""
    z = rough_draws()["unconstrained_posterior"]["z"].to_numpy()
    of_prior = -0.5 * (z**2).sum(axis=-1)
    of_rows = np.asarray([[float(rough().log_density(one)) for one in chain] for chain in z[:, :3]])
    mine = decoct.prior_sensitivity(rough(), rough_draws())
    site = np.asarray(rough().site.log_density(z.reshape(-1, 2))).reshape(z.shape[:2])
    np.testing.assert_allclose(np.diff(of_rows), np.diff((site + of_prior)[:, :3]), rtol=1e-9)
    tree = from_dict(
        {
            "posterior": {"a": z[..., 0], "b": z[..., 1]},
            "log_prior": {"p": of_prior},
            "log_likelihood": {"l": site},
        }
    )
    theirs = psense_summary(tree, round_to=6)
    np.testing.assert_allclose(
        mine.power_scaling[["prior", "likelihood"]], theirs[["prior", "likelihood"]], rtol=0.02
    )
    assert mine.verdict == ""
    assert "of the coreset, uncertified" in repr(mine)


def test_power_scaling_follows_the_certificate():
    """A sensitivity is near 2/log 4 · sd-shift for a Gaussian; a stronger prior has more of it."""
    strong = GaussianMean(np.eye(2), prior_mean=-3.0, prior_covariance=0.05)
    built = decoct.build(strong, {"x": POINTS}, size=0, method=IteratedHilbert(site=True))
    given = built.sample(draws=1000, chains=2, sampler=Exact())
    informed = decoct.prior_sensitivity(built, given, rows={"x": POINTS})
    assert (informed.power_scaling["prior"] > 0.2).all()
    assert (found().power_scaling["prior"] < 0.05).all()
    assert "2 of 2 parameters" in repr(informed)


def test_jacobians_are_those_of_the_names_that_a_model_constrains():
    space, z = coreset().density.space, np.random.default_rng(0).normal(size=(5, 3))
    positive = Variant(is_log=True)
    np.testing.assert_allclose(log_jacobians(positive, space, z), z.sum(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(log_jacobians(MODEL, space, z), np.zeros(5))


def test_jacobians_of_a_numpyro_model():
    """log τ of a scale, and Σ log q of a simplex by stick breaking, up to a constant."""
    numpyro = pytest.importorskip("numpyro")
    dist = numpyro.distributions

    def model(y=None):
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        q = numpyro.sample("q", dist.Dirichlet(jnp.ones(3)))
        mu = numpyro.deterministic("mu", tau * q[0])
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    bridge = decoct.from_numpyro(model, {"y": np.arange(5.0)}, plate="data")
    space = ParameterSpace.of(bridge.start)
    z = np.random.default_rng(0).normal(size=(6, space.dim))
    with jax.enable_x64(True):
        named = jax.vmap(lambda one: bridge.constrain(space.unflatten(one)))(jnp.asarray(z))
    wanted = np.log(named["tau"]) + np.log(named["q"]).sum(axis=1)
    assert np.ptp(log_jacobians(bridge, space, z) - wanted) < 1e-12


def test_the_result_is_a_table_and_json():
    frame = found().to_frame()
    assert list(frame["prior"]) == ["wide", "wide"]
    assert list(frame["parameter"]) == ["mean[x[0]]", "mean[x[1]]"]
    assert {"mean_shift", "mean_shift_se", "sd_ratio", "sd_ratio_se", "reweighted"} <= set(frame)
    figures = json.loads(json.dumps(found().to_dict()))
    assert figures["priors"][0]["moves"][0]["parameter"] == "mean[x[0]]"
    assert set(figures["power_scaling"]["mean[x[1]]"]) == {"prior", "likelihood", "diagnosis"}
    lines = repr(found()).splitlines()
    assert lines[0].startswith(f"Posteriors by the certificate {certificate().grade.value}")
    assert lines[2].startswith("wide")
    assert lines[2].endswith("reweighted")
    assert decoct.prior_sensitivity(rough(), rough_draws()).to_frame().empty


def improper(params):
    return jnp.where(params["mean"][0] > 10.0, 0.0, -jnp.inf)


@pytest.mark.parametrize(
    ("priors", "sentence"),
    [
        (3.0, "not 3.0"),
        ([3.0], "'prior 1' is neither a function"),
        ({1: WIDE}, "or map names to them"),
        ({"wide": 3.0}, "'wide' is neither a function"),
        ({"wide": GaussianMean}, "'wide' is neither a function"),
        ({"cut": improper}, "The log prior 'cut' is -inf at draw 0 of chain 0"),
        ([lambda p: -(p["mean"] ** 2)], "'prior 1' returns .*, and not one real number; sum"),
        ([lambda p: p["mean"].sum() > 0.0], "dtype=bool.*, and not one real number; sum"),
        ([lambda p: p["means"].sum()], "'prior 1' fails: KeyError: 'means'. A log prior takes"),
        ({"other": GaussianMean(np.eye(3))}, "'other' is a GaussianMean that is another model"),
        ({"other": MODEL}, "'other' is a LogisticRegression that is another model"),
        ({"other": GaussianMean(2.0 * np.eye(2))}, "its log-likelihood of the rows is"),
    ],
)
def test_bad_priors_are_refused(priors, sentence):
    with pytest.raises(RequestError, match=sentence):
        decoct.prior_sensitivity(rough(), rough_draws(), priors)


class Variant(LogisticRegression):
    """A logistic regression with another likelihood, or another scale for a person to read."""

    power: float = eqx.field(default=1.0, static=True, kw_only=True)
    is_log: bool = eqx.field(default=False, static=True, kw_only=True)

    def log_likelihood_at(self, predictor, rows):
        return self.power * super().log_likelihood_at(predictor, rows)

    def constrain(self, params):
        return {"beta": jnp.exp(params["beta"]) if self.is_log else params["beta"]}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (MODEL, "the coreset's is a Variant"),
        (Variant(power=0.9), "its log-likelihood of the rows is"),
        (Variant(is_log=True), "its parameter 'beta' is missing or has another support"),
    ],
)
def test_another_likelihood_and_another_support_are_no_other_prior(other, reason):
    given = replace(coreset(), model=Variant())
    with pytest.raises(RequestError, match=reason):
        decoct.prior_sensitivity(given, draws(), {"other": other})


def test_bad_draws_certificates_and_tables_are_refused():
    with pytest.raises(RequestError, match="There are 60 draws"):
        decoct.prior_sensitivity(rough(), np.zeros((60, 2)))
    with pytest.raises(RequestError, match="2 unconstrained parameters"):
        decoct.prior_sensitivity(rough(), np.zeros((200, 3)))
    with pytest.raises(RequestError, match="not the ones that were checked"):
        decoct.prior_sensitivity(rough(), rough_draws(2), check=certificate())
    with pytest.raises(CoresetFileError, match="50 rows"):
        decoct.prior_sensitivity(rough(), rough_draws(), rows={"x": POINTS[:-1]})


def test_a_mixture_s_coreset_has_no_prior_to_change():
    pytest.importorskip("sklearn")
    built = decoct.mixture.build(
        decoct.mixture.DPGaussianMixture(n_components=2), {"x": POINTS}, size=20
    )
    for ask in (
        lambda: decoct.prior_sensitivity(built, np.zeros((200, 2))),
        lambda: decoct.log_evidence(built, {"x": POINTS}, np.zeros((200, 2))),
    ):
        with pytest.raises(RequestError, match="density over its parameters"):
            ask()


@pytest.mark.parametrize(
    "verb", [decoct.check, decoct.loo, decoct.log_evidence, decoct.prior_sensitivity]
)
def test_a_table_in_the_place_of_the_coreset_is_a_sentence(verb):
    arguments = [{"x": np.ones((9, 2))}, rough(), rough_draws()]
    if verb is decoct.prior_sensitivity:
        arguments = [arguments[0], rough_draws(), [MODEL]]
    with pytest.raises(RequestError, match=r"coreset must be what .*, not a dict; it comes first"):
        verb(*arguments)
