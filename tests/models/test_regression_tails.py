"""Extreme predictors, against decimal arithmetic."""

from decimal import Decimal, localcontext
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from decoct.models import LogisticRegression, PoissonRegression, StudentTRegression
from decoct.models.logistic import log_sigmoid, sigmoid
from decoct.models.poisson import log_softplus, softplus
from decoct.models.student_t import log_gamma_half_step, log_one_plus_square
from decoct.runtime.precision import float64

PREDICTORS = [-700.0, -300.0, -40.0, -37.0, -36.9, -20.0, -10.0, -9.9, -3.0, -1e-3, -1e-200, 0.0]
PREDICTORS += [-value for value in PREDICTORS[:-1]]
PREDICTORS = np.array(PREDICTORS)


class Exact(NamedTuple):
    """For σ the sigmoid and r the softplus: values, and the derivatives of log r and of σ."""

    s: float
    s_minus: float
    log_s: float
    r: float
    log_r: float
    slope: float
    curve: float
    variance: float


def exact(eta):
    with localcontext() as context:
        # 1 + e⁻⁷⁰⁰ − 1 loses 304 digits
        context.prec = 700
        up = Decimal(float(eta)).exp()
        s, r = up / (1 + up), (1 + up).ln()
        slope = s / r
        values = (s, 1 - s, s.ln(), r, r.ln(), slope, slope * (1 - s) - slope**2, s * (1 - s))
        return Exact(*map(float, values))


EXACT = Exact(*np.array([exact(eta) for eta in PREDICTORS]).T)


def close(value, expected, rtol=1e-14):
    np.testing.assert_allclose(value, expected, rtol=rtol, atol=0)


def derivatives(function, x):
    """Return value, first derivative, second by reverse and by forward mode."""
    slope = jax.grad(function)
    return jax.jit(lambda z: (function(z), slope(z), jax.grad(slope)(z), jax.jacfwd(slope)(z)))(x)


def each(function):
    """Return the `derivatives` of a function of one number at all predictors."""
    values = jax.vmap(lambda eta: jnp.stack(derivatives(function, eta)))(jnp.array(PREDICTORS))
    return np.asarray(values).T


@float64
def test_sigmoid():
    value, slope, _, _ = each(sigmoid)
    close(value, EXACT.s)
    close(slope, EXACT.variance)


@float64
def test_log_sigmoid():
    value, slope, reverse, forward = each(log_sigmoid)
    close(value, EXACT.log_s)
    close(slope, EXACT.s_minus)
    close(reverse, -EXACT.variance)
    close(forward, -EXACT.variance)


@float64
def test_softplus():
    value, slope, reverse, forward = each(softplus)
    close(value, EXACT.r)
    close(slope, EXACT.s)
    close(reverse, EXACT.variance)
    close(forward, EXACT.variance)


@float64
def test_log_softplus():
    value, slope, reverse, forward = each(log_softplus)
    close(value, EXACT.log_r)
    close(slope, EXACT.slope)
    # between -10 and 0 the second derivative is a difference of numbers near 1
    close(reverse, EXACT.curve, rtol=1e-10)
    close(forward, EXACT.curve, rtol=1e-10)


@float64
def test_log_sigmoid_is_as_exact_in_a_reduction():
    # XLA compiles log1p in another way there
    total = jax.jit(lambda m: log_sigmoid(m).sum(axis=1))
    close(total(jnp.array(PREDICTORS)[:, None]), EXACT.log_s)


def one_row(model, y):
    rows = {"x": jnp.ones((1, 1)), "y": jnp.array([y])}
    return lambda eta: model.log_likelihood({"beta": eta[None]}, rows)[0]


@pytest.mark.parametrize("label", [-1.0, 1.0])
@float64
def test_logistic_at_a_million(label):
    for eta in (-1e6, 1e6):
        value, slope, reverse, forward = derivatives(
            one_row(LogisticRegression(), label), jnp.asarray(eta)
        )
        assert value == min(label * eta, 0.0)
        assert slope == (label if label * eta < 0 else 0.0)
        assert reverse == forward == 0.0


@pytest.mark.parametrize("label", [-1.0, 1.0])
@float64
def test_logistic_gradient_at_zero_is_half_the_label(label):
    value, slope, reverse, forward = derivatives(
        one_row(LogisticRegression(), label), jnp.zeros(())
    )
    close(value, -np.log(2.0))
    assert slope == label / 2.0
    assert reverse == forward == -0.25


@pytest.mark.parametrize(("y", "log_factorial"), [(0.0, 0.0), (1.0, 0.0), (4.0, np.log(24.0))])
@float64
def test_poisson_softplus(y, log_factorial):
    value, slope, reverse, forward = each(one_row(PoissonRegression(), y))
    # the 1e-15 is of lgamma(1), a constant
    expected = y * EXACT.log_r - EXACT.r - log_factorial
    np.testing.assert_allclose(value, expected, rtol=1e-13, atol=1e-15)
    close(slope, y * EXACT.slope - EXACT.s, rtol=1e-13)
    close(reverse, y * EXACT.curve - EXACT.variance, rtol=1e-10)
    close(forward, y * EXACT.curve - EXACT.variance, rtol=1e-10)


@pytest.mark.parametrize("y", [0.0, 1.0])
@float64
def test_poisson_log_link(y):
    for eta in (-700.0, 0.0, 700.0):
        values = derivatives(one_row(PoissonRegression(link="log"), y), jnp.asarray(eta))
        rate = float(Decimal(eta).exp())
        expected = (y * eta - rate, y - rate, -rate, -rate)
        np.testing.assert_allclose(values[0], expected[0], rtol=1e-13, atol=1e-15)
        close(values[1:], expected[1:], rtol=1e-13)


@pytest.mark.parametrize("residual", [-3.0, 0.0, 3.0])
@pytest.mark.parametrize("log_scale", [-700.0, 700.0])
@float64
def test_student_t_with_an_extreme_scale(residual, log_scale):
    model, nu = StudentTRegression(nu=5.0, scale="log-linear"), 5.0
    rows = {"x": jnp.ones((1, 1)), "y": jnp.array([residual])}

    def potential(theta):
        return model.log_likelihood({"beta": theta[:1], "gamma": theta[1:]}, rows)[0]

    all_three = jax.jit(lambda z: (potential(z), jax.grad(potential)(z), jax.hessian(potential)(z)))
    value, slope, curvature = all_three(jnp.array([0.0, log_scale]))
    far = residual != 0 and log_scale < 0
    log_square = 2 * (np.log(3.0) - log_scale) - np.log(nu) if far else 0.0
    # Γ(3) = 2 and Γ(5/2) = 3√π/4
    constant = np.log(2.0) - np.log(0.75 * np.sqrt(np.pi)) - 0.5 * np.log(nu * np.pi)
    close(value, constant - log_scale - 0.5 * (nu + 1) * log_square, rtol=1e-13)
    slopes = ((nu + 1) / residual if far else 0.0, nu if far else -1.0)
    np.testing.assert_allclose(slope, slopes, rtol=1e-13, atol=1e-300)
    if residual or log_scale > 0:
        assert np.isfinite(curvature).all()


@float64
def test_student_t_tends_to_the_normal():
    # log Γ(½ν + ½) − log Γ(½ν) as it stands has no correct digit here
    model = StudentTRegression(nu=1e15)
    rows = {"x": jnp.ones((1, 1)), "y": jnp.array([1.7])}
    value = model.log_likelihood({"beta": jnp.zeros(1), "log_scale": jnp.zeros(())}, rows)[0]
    close(value, -0.5 * 1.7**2 - 0.5 * np.log(2 * np.pi), rtol=1e-12)


@float64
def test_student_t_derivatives_in_nu_are_finite_over_its_range():
    model = StudentTRegression()
    rows = {"x": jnp.ones((3, 1)), "y": jnp.array([-20.0, 0.0, 1.0])}

    def density(log_nu):
        params = {"beta": jnp.zeros(1), "log_scale": jnp.zeros(()), "log_nu": log_nu}
        return model.log_likelihood(params, rows).sum() + model.log_prior(params)

    log_nu = jnp.linspace(-15.0, 12.0, 28)
    assert np.isfinite(jax.vmap(lambda v: jnp.stack(derivatives(density, v)))(log_nu)).all()


@float64
def test_log_one_plus_square_where_the_square_overflows():
    u = np.array([-1.5e308, -1e19, -1.0, 0.0, 1e-150, 1e-5, 3.0, 1e19, 2e20, 1e155, 1.5e308])
    value, slope, reverse, _ = jax.vmap(partial(derivatives, log_one_plus_square))(u)
    with np.errstate(divide="ignore"):
        close(value, np.logaddexp(0.0, 2.0 * np.log(np.abs(u))), rtol=1e-12)
        # XLA flushes subnormal numbers to zero
        tiny = np.finfo(np.float64).tiny
        np.testing.assert_allclose(slope, 2.0 / (u + 1.0 / u), rtol=1e-14, atol=tiny)
    assert np.isfinite(reverse).all()


@float64
def test_half_step_of_log_gamma():
    a = np.concatenate([np.geomspace(1e-7, 30.0, 40), np.arange(1.0, 12.0)])
    value, slope, reverse, forward = jax.vmap(partial(derivatives, log_gamma_half_step))(a)
    np.testing.assert_allclose(
        value, special.gammaln(a + 0.5) - special.gammaln(a), rtol=1e-13, atol=1e-14
    )
    close(slope, special.digamma(a + 0.5) - special.digamma(a), rtol=1e-12)
    close(reverse, special.polygamma(1, a + 0.5) - special.polygamma(1, a), rtol=1e-11)
    close(forward, special.polygamma(1, a + 0.5) - special.polygamma(1, a), rtol=1e-11)
