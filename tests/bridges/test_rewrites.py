"""Operations are replaced by faster and more exact ones, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import xlogy

from decoct.bridges.rewrites import PackageForm, rewrite


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def poisson(params, rows):
    rate = jnp.exp(rows["x"] @ params["beta"])
    return rows["y"] * jnp.log(rate) - rate


def test_what_was_meant_where_the_exponential_is_zero_or_infinite():
    x = jnp.array([[-800.0], [800.0], [2.0]])
    params, rows = {"beta": jnp.ones(1)}, {"x": x, "y": jnp.array([3.0, 0.0, 1.0])}
    found = rewrite(poisson)(params, rows)
    np.testing.assert_array_equal(found, [-2400.0, -np.inf, 2.0 - np.exp(2.0)])
    assert not np.isfinite(poisson(params, rows)[:2]).any()
    finite = {name: column[jnp.array([0, 2])] for name, column in rows.items()}
    slopes = jax.jacobian(lambda b: rewrite(poisson)({"beta": b}, finite))(params["beta"])
    np.testing.assert_allclose(slopes[:, 0], [-2400.0, 2.0 - 2.0 * np.exp(2.0)])


def test_no_logarithm_is_left():
    rows = {"x": jnp.ones((4, 2)), "y": jnp.ones(4)}
    wrapped = jax.jit(jax.vmap(rewrite(poisson), in_axes=({"beta": 0}, None)))
    params = {"beta": jnp.array([[0.1, 0.2], [0.3, -1.0]])}
    assert " log " not in str(jax.make_jaxpr(wrapped)(params, rows))
    assert " log " in str(jax.make_jaxpr(poisson)({"beta": params["beta"][0]}, rows))
    expected = [poisson({"beta": beta}, rows) for beta in params["beta"]]
    np.testing.assert_allclose(wrapped(params, rows), expected, rtol=1e-15)


def busy(x):
    """Loops, branches, calls, several results, constants, and logarithms of other things."""
    grown = jax.lax.scan(lambda c, v: (c * jnp.exp(-v), c), 1.0, x)[1]
    chosen = jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x)
    looped = jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 1.5), (0, x[1]))[1]
    order = jax.lax.sort((x, jnp.arange(3.0)), num_keys=1)
    inner = jax.jit(lambda v: jnp.log1p(jnp.exp(v)) + jnp.log(2.0 + v**2))(x)
    return {"a": grown + chosen, "b": (looped, order[1]), "c": inner, "d": jnp.arange(3), "e": x}


def test_everything_else_is_as_it_was():
    x = jnp.array([0.3, -1.2, 2.0])
    expected, found = busy(x), rewrite(busy)(x)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_allclose(one, two, rtol=1e-15)


def counts(params, rows):
    """As NumPyro writes it: the logarithm is in a function with a derivative of its own."""
    rate = jnp.exp(rows["x"] @ params["beta"])
    return jax.jit(xlogy)(rows["y"], rate) - rate


def test_logarithms_in_calls_are_seen():
    rows = {"x": jnp.array([[0.5, 1.0], [-2.0, 0.3]]), "y": jnp.array([0.0, 3.0])}
    beta = jnp.array([0.7, -1.2])
    assert "log" in str(jax.make_jaxpr(counts)({"beta": beta}, rows))
    assert "log" not in str(jax.make_jaxpr(rewrite(counts))({"beta": beta}, rows))
    for look in (lambda f: f, jax.jacfwd, jax.hessian):
        wanted, found = (
            look(lambda b, f=f: f({"beta": b}, rows))(beta) for f in (counts, rewrite(counts))
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=1e-15)


def test_only_jaxs_own_function_of_that_name_is_meant():
    @jax.custom_jvp
    def xlogy(log_mu, r):
        return r * jnp.log(log_mu)

    xlogy.defjvp(lambda p, t: (xlogy(*p), 7.0 * t[1]))

    def own(b):
        return xlogy(3.0, jnp.exp(b))

    @jax.custom_jvp
    def alone(b):
        return b * jnp.log(b)

    alone.defjvp(lambda p, t: (alone(*p), t[0]))
    for fn in (own, alone):
        for look in (lambda f: f, jax.grad):
            assert look(rewrite(fn))(0.4) == look(fn)(0.4)


def test_logarithms_of_complex_exponentials_have_branches():
    def angle(x):
        return jnp.log(jnp.exp(1j * x)).imag

    np.testing.assert_allclose(rewrite(angle)(4.0), 4.0 - 2.0 * np.pi, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_times_minus_infinity_is_zero_in_either_precision(dtype):
    found = rewrite(lambda x: xlogy(dtype(0.0), jnp.exp(x)))(dtype(-np.inf))
    assert found.dtype == dtype
    assert found == 0.0


@pytest.mark.parametrize("y", [0.0, 2.0, -1.0])
@pytest.mark.parametrize("x", [-np.inf, -800.0, -1.0, 0.0, 3.0, np.nan])
def test_a_count_of_zero_costs_nothing_where_the_rate_is_zero(y, x):
    """exp(−800) is 0 and its logarithm −∞: there x is what was meant."""
    rows, params = {"x": jnp.array([[x]]), "y": jnp.array([y])}, {"beta": jnp.ones(1)}
    (found,) = np.asarray(rewrite(counts)(params, rows))
    meant = -np.exp(x) if y == 0.0 and not np.isnan(x) else y * x - np.exp(x)
    np.testing.assert_allclose(found, meant, rtol=1e-15)


def softplus(x):
    """Some package's."""
    return jnp.where(x < 20.0, jnp.log1p(jnp.exp(x)), x)


SOFTPLUS = PackageForm(lambda x: -softplus(x), (np.zeros(2),), lambda x: (-x, 0.0))


def labels(eta, y):
    either = jnp.where(y == 1, -softplus(-eta), -softplus(eta))
    possible = jnp.where((y < 0) | (y > 1), -jnp.inf, either)
    p = jax.nn.sigmoid(eta)
    return jnp.where(jnp.all((p >= 0.0) & (p <= 1.0)), possible, -jnp.inf)


def test_choices_between_log_sigmoids_are_made_in_the_argument():
    eta, y = jnp.array([-800.0, -2.0, 0.0, 3.0, 800.0, 1.0]), jnp.array([0, 1, 0, 0, 1, 2])
    fast = rewrite(labels, [SOFTPLUS])
    program = str(jax.jit(fast).lower(eta, y).compile().as_text())
    assert program.count(" log-plus-one(") == 1
    assert " logistic(" not in program
    np.testing.assert_allclose(fast(eta, y), labels(eta, y), rtol=1e-12)
    slopes = jax.grad(lambda eta: fast(eta, y)[:5].sum())(eta)
    np.testing.assert_allclose(slopes, np.r_[(y - jax.nn.sigmoid(eta))[:5], 0.0], atol=1e-15)


def test_other_functions_are_not_taken_for_a_log_sigmoid():
    def other(x):
        return -jnp.where(x < 19.0, jnp.log1p(jnp.exp(x)), x)

    def two(x, z):
        return -jnp.where(x < 20.0, jnp.log1p(jnp.exp(z)), x)

    def narrow(x):
        return -softplus(x.astype(np.float32))

    x, z = jnp.array([-3.0, 0.5, 25.0]), jnp.array([1.0, 2.0, 3.0])
    for fn, given in ((other, (x,)), (two, (x, z)), (narrow, (x,))):
        program = jax.make_jaxpr(rewrite(fn, [SOFTPLUS]))(*given)
        assert "log_sigmoid" not in str(program)
        np.testing.assert_array_equal(rewrite(fn, [SOFTPLUS])(*given), fn(*given))


def test_a_matrix_of_one_column_is_a_vector():
    def column(a, v):
        return (a @ v[:, None]).reshape(-1)

    a, v = jnp.arange(6.0).reshape(2, 3), jnp.array([1.0, -2.0, 0.5])
    program = jax.jit(rewrite(column)).lower(a, v).as_text()
    assert "tensor<3x1xf64>" not in program
    np.testing.assert_allclose(rewrite(column)(a, v), column(a, v), rtol=1e-15)


def test_a_rate_is_zero_where_its_logarithm_is_minus_infinity():
    """exp(−800) is 0 in float64, and 3 (−800) is still what was meant."""

    def rates(eta, y):
        rate = jnp.exp(eta)
        return jnp.where(rate == 0.0, jnp.where(y == 0, 0.0, -jnp.inf), y * eta) - rate

    found = rewrite(rates)(jnp.array([-800.0, -jnp.inf, -jnp.inf]), jnp.array([3, 0, 2]))
    np.testing.assert_array_equal(found, [-2400.0, 0.0, -np.inf])


def test_checks_that_always_hold_are_left_out():
    """XLA would add up as many constants as there are rows and draws while it compiles."""

    def always(eta):
        rate, p = jnp.exp(eta), jax.nn.sigmoid(eta)
        holds = jnp.all(rate >= 0.0) & jnp.all(p >= 0.0) & jnp.all(p <= 1.0)
        return jnp.where(holds, -rate, -jnp.inf)

    def sometimes(eta):
        return jnp.where(jnp.all(eta >= 0.0), -eta, -jnp.inf)

    eta = jnp.array([-3.0, 0.5])
    assert "reduce_and" in str(jax.make_jaxpr(always)(eta))
    assert "reduce_and" not in str(jax.make_jaxpr(rewrite(always))(eta))
    np.testing.assert_array_equal(rewrite(always)(eta), always(eta))
    np.testing.assert_array_equal(rewrite(sometimes)(eta), [-np.inf, -np.inf])
    np.testing.assert_array_equal(rewrite(sometimes)(-eta[:1]), [-3.0])
