"""What a coreset of rows cannot carry is refused in a sentence that names the remedy."""

import numpy as np
import pytest

pytest.importorskip("numpyro")

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import decoct
from decoct.bridges.numpyro import from_numpyro
from tests.bridges.numpyro_zoo import homes, logistic, logistic_rows

Y = np.linspace(-1.0, 1.0, 12)
IDS = np.arange(12) % 4


def scalar(name="mu"):
    return numpyro.sample(name, dist.Normal(0.0, 1.0))


def observe(mean, y):
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def refusal(model, rows=None, error=decoct.ModelError, **options):
    with pytest.raises(error) as caught:
        from_numpyro(model, {"y": Y} if rows is None else rows, **options)
    message = str(caught.value)
    assert len(message) < 700
    return message


def test_a_subsampling_plate():
    """Trap: the site scale N/B of a subsample would multiply the weights."""

    def model(y):
        mu = scalar()
        with numpyro.plate("data", len(y), subsample_size=5) as chosen:
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[chosen])

    message = refusal(model)
    assert "'data' draws a subsample of 5 out of 12" in message
    assert "remove subsample_size" in message


def test_one_latent_per_row_in_the_plate():
    def model(y):
        mu = scalar()
        with numpyro.plate("data", len(y)):
            effect = numpyro.sample("effect", dist.Normal(mu, 1.0))
            numpyro.sample("y", dist.Normal(effect, 1.0), obs=y)

    message = refusal(model)
    assert "'effect' in plate 'data' is latent" in message
    assert "Marginalise" in message


def test_one_latent_per_row_outside_the_plate():
    def model(y):
        effect = numpyro.sample("effect", dist.Normal(jnp.zeros(len(y)), 1.0).to_event(1))
        observe(effect, y)

    message = refusal(model)
    assert "'effect' has shape (12,) on 12 rows and (5,) on 5" in message
    assert "one unknown per row" in message


def test_a_response_that_was_forgotten():
    message = refusal(logistic, {"x": logistic_rows(12)["x"]})
    assert "Site 'y' in plate 'data' is latent" in message
    assert "obs= argument is missing" in message


def test_missing_responses_imputed_by_obs_mask():
    """Trap: obs_mask adds a latent site per row under another name."""

    def model(y, seen):
        mu = scalar()
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=seen)

    assert "'y_unobserved'" in refusal(model, {"y": Y, "seen": Y > 0})


def test_a_discrete_latent():
    def model(y):
        kind = numpyro.sample("kind", dist.Bernoulli(0.5))
        observe(kind, y)

    message = refusal(model)
    assert "'kind' is discrete (BernoulliProbs)" in message
    assert "MixtureGeneral" in message


def test_no_plate_of_that_name():
    def model(y):
        with numpyro.plate("group", 3):
            mu = scalar()
        with numpyro.plate("obs", len(y)):
            numpyro.sample("y", dist.Normal(mu.sum(), 1.0), obs=y)

    message = refusal(model)
    assert "no plate named 'data'; it has 'group' of size 3, 'obs' of size 12" in message
    assert "plate=..." in message
    assert from_numpyro(model, {"y": Y}, plate="obs").columns == ("y",)


def test_no_plate_at_all():
    def model(y):
        numpyro.sample("y", dist.Normal(scalar(), 1.0), obs=y)

    assert "no plate named 'data', nor any other" in refusal(model)


def test_an_observed_site_outside_the_plate():
    def model(y):
        mu = scalar()
        numpyro.sample("total", dist.Normal(mu, 1.0), obs=1.0)
        observe(mu, y)

    message = refusal(model)
    assert "'total' lies outside plate 'data'" in message
    assert "numpyro.factor" in message


def test_two_plates_of_data():
    def model(y, other):
        mu = scalar()
        observe(mu, y)
        with numpyro.plate("second", len(other)):
            numpyro.sample("other", dist.Normal(mu, 1.0), obs=other)

    message = refusal(model, {"y": Y, "other": Y[:7]})
    assert "'other' lies in plate 'second' of size 7 and not in 'data' of size 12" in message
    assert "one table" in message


def test_two_nested_plates_that_follow_the_rows():
    def model(y):
        mu = scalar()
        with numpyro.plate("data", len(y)), numpyro.plate("pair", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[:, None] - y[None, :])

    message = refusal(model)
    assert "'pair' around site 'y' has size 12 on 12 rows and 5 on 5" in message
    assert "Only one may" in message


def test_two_plates_of_one_name_and_different_sizes():
    def model(y, other):
        mu = scalar()
        observe(mu, y)
        with numpyro.plate("data", 7):
            numpyro.sample("other", dist.Normal(mu, 1.0), obs=other)

    refusal(model, {"y": Y, "other": Y[:7]})


@pytest.mark.parametrize("library", [np, jnp])
def test_groups_counted_in_the_rows(library):
    """Trap: ids.max() + 1 on a coreset is another model."""

    def model(ids, y):
        n_groups = int(ids.max()) + 1
        with numpyro.plate("group", n_groups):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        observe(effect[ids], y)

    ids = library.asarray(np.sort(np.arange(60) % 31))
    message = refusal(model, {"ids": ids, "y": np.zeros(60)})
    assert "Latent site 'effect' has shape (31,) on 60 rows and (25,) on 5" in message
    assert "Pass the number of groups as a constant" in message


def test_groups_counted_where_every_probe_has_the_last_one():
    """Two groups, both in any few rows: the shapes agree, compiling does not."""

    def model(ids, y):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([int(ids.max()) + 1]))
        observe(effect[ids], y)

    message = refusal(model, {"ids": np.ones(12, int), "y": Y})
    assert "reads the values of its rows while it is compiled" in message
    assert "as constants" in message


def test_data_from_outside_the_arguments():
    def model(x):
        slope = scalar()
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=jnp.asarray(Y))

    message = refusal(model, {"x": Y})
    assert (
        "among the rows, and everything else as a constant" in message
        or "do not follow the rows" in message
    )


def test_data_in_a_condition_handler():
    def model(x):
        slope = scalar()
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(slope, 1.0))

    conditioned = numpyro.handlers.condition(model, data={"y": jnp.asarray(Y)})
    message = refusal(conditioned, {"x": Y})
    assert "'y' has 12 values along plate 'data' when the model is given 3 rows" in message


def test_a_covariate_standardised_inside_the_model():
    """Trap: on a coreset its mean and sd would be others."""

    def model(x, y):
        slope = scalar()
        observe(slope * (x - x.mean()) / x.std(), y)

    message = refusal(model, {"x": Y**2, "y": Y})
    assert "changes with the other rows" in message
    assert "pass it as a constant" in message


def test_a_prior_made_from_the_rows():
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(y.mean(), 1.0))
        observe(mu, y)

    assert "prior's constants must be computed outside the model" in refusal(model)


def test_a_likelihood_hidden_in_a_factor():
    """Trap: a factor outside the plate counts as prior, and would be lost."""

    def model(y):
        mu = scalar()
        observe(mu, y)
        numpyro.factor("more", jnp.sum(-((y - mu) ** 2)))

    assert "goes inside the plate, one value per row" in refusal(model)


def test_a_param_site():
    def model(y):
        mu = numpyro.param("mu", 0.0)
        observe(mu, y)

    assert "'mu' is a numpyro.param" in refusal(model)


def test_nothing_to_infer():
    def model(y):
        observe(0.0, y)

    assert "no latent site" in refusal(model)


def test_nothing_observed():
    def model(y):
        scalar()
        with numpyro.plate("data", len(y)):
            numpyro.deterministic("twice", 2 * y)

    assert "No site in plate 'data' is observed" in refusal(model)


def test_a_log_density_that_is_nowhere_finite():
    def model(y):
        mu = scalar()
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
            numpyro.factor("impossible", jnp.where(y < 0.0, -jnp.inf, 0.0))

    assert "not finite at any of 21 starting points" in refusal(model)


def test_arguments_that_do_not_fit():
    rows = {"x": logistic_rows(12)["x"], "y": IDS % 2}
    unknown = refusal(logistic, {**rows, "z": Y}, decoct.RequestError)
    assert "no argument 'z'; its arguments are: x, y" in unknown
    twice = refusal(logistic, rows, decoct.RequestError, x=rows["x"])
    assert "'x' is given twice" in twice
    assert "no rows" in refusal(logistic, {}, decoct.RequestError)
    assert "a function" in refusal("logistic", rows, decoct.RequestError)
    without = {k: v for k, v in homes(20).items() if k != "n_counties"}

    def groups(county, floor, y, n_counties):
        raise AssertionError

    assert "missing 1 required positional argument: 'n_counties'" in refusal(groups, without)
    table = decoct.rows({"other": Y})
    assert "None of the table's columns (other)" in refusal(logistic, table)


def test_arrays_inside_a_container():
    def model(data):
        mu = scalar()
        with numpyro.plate("data", len(data["y"])):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=data["y"])

    message = refusal(model, {"data": {"y": Y}}, decoct.RequestError)
    assert "'data' is a dict that contains arrays of 12 rows" in message
    assert "Write a model around yours" in message


def test_rows_on_the_second_axis():
    def model(y):
        mu = scalar()
        with numpyro.plate("data", y.shape[1]):
            numpyro.sample("y", dist.Normal(mu, 1.0).expand([2]).to_event(1), obs=y.T)

    message = refusal(model, {"y": np.stack([Y, Y])}, decoct.RequestError)
    assert "no argument has that many entries along its first axis: 'y' (2, 12)" in message


def test_a_coreset_of_another_model():
    rows = {"x": logistic_rows(40)["x"], "y": logistic_rows(40)["y"]}
    from decoct.constructions import Uniform

    coreset = decoct.build(
        decoct.models.LogisticRegression(), rows, size=5, method=Uniform(), progress=False
    )
    with pytest.raises(decoct.RequestError, match=r"LogisticRegression; .* decoct.from_numpyro"):
        coreset.to_numpyro()


def test_the_flags_are_left_alone():
    before = jax.config.read("jax_enable_x64")
    with pytest.raises(decoct.ModelError):
        from_numpyro(logistic, logistic_rows(12), plate="other")
    from_numpyro(logistic, logistic_rows(12))
    assert jax.config.read("jax_enable_x64") == before


def grouped(ids, y, n_groups, shift=0):
    with numpyro.plate("group", n_groups):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    observe(effect[ids - shift], y)


@pytest.mark.parametrize(
    ("ids", "constants"),
    [
        (np.arange(60), {"n_groups": 60}),
        (np.random.default_rng(0).permutation(60), {"n_groups": 60}),
        (np.arange(1, 61), {"n_groups": 60, "shift": 1}),
        (np.arange(0, 120, 2), {"n_groups": 386}),
    ],
    ids=["in order", "mixed", "from one", "of many"],
)
def test_a_latent_value_for_every_row_behind_an_index(ids, constants):
    """Trap: N groups with ids = arange(N) look like any plate of groups."""
    rows = {"ids": ids, "y": np.random.default_rng(0).normal(size=60)}
    message = refusal(grouped, rows, **constants)
    assert "'effect' has a latent value for every one of the 60 rows" in message
    assert "groups of several rows each" in message


def test_a_latent_value_for_most_rows_while_others_have_no_derivative():
    """Rows on the flat side of a kink tell nothing; groups with a flat row stay welcome."""

    def kinked(ids, y, n_groups):
        with numpyro.plate("group", n_groups):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(y)):
            mean = jnp.where(y > 2.0, 0.0, effect[ids])
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    numbers, y = np.arange(60), np.linspace(-3.0, 3.0, 60)
    message = refusal(kinked, {"ids": numbers, "y": y}, n_groups=60)
    assert "'effect' has a latent value for 50 of the 60 rows" in message
    assert from_numpyro(kinked, {"ids": numbers // 2, "y": y}, n_groups=60).rows.n_rows == 60


def test_a_latent_value_for_every_row_behind_a_table_and_two_indices():
    def looked_up(ids, y, table):
        effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([60]).to_event(1))
        observe(effect[table[ids]], y)

    def cells(one, other, y):
        with numpyro.plate("one", 6, dim=-2), numpyro.plate("other", 10, dim=-1):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
        observe(effect[one, other], y)

    def pairs(ids, y):
        """Two values for every row: an intercept and a slope."""
        with numpyro.plate("group", 60):
            effect = numpyro.sample("effect", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("data", len(y)):
            mean = effect[ids, 0] + 0.5 * effect[ids, 1]
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    numbers, y = np.arange(60), np.random.default_rng(0).normal(size=60)
    says = "'effect' has a latent value for every one of the 60 rows"
    table = np.random.default_rng(1).permutation(60)
    assert says in refusal(looked_up, {"ids": numbers, "y": y}, table=table)
    assert says in refusal(cells, {"one": numbers // 10, "other": numbers % 10, "y": y})
    assert says in refusal(pairs, {"ids": numbers, "y": y})


@pytest.mark.parametrize("n_groups", [1, 20, 30, 59, 386])
def test_groups_of_several_rows_are_welcome(n_groups):
    """Radon's 386 counties on 12,573 rows; groups of two and three; all but one of them single."""
    used = min(n_groups, 59)
    rows = {"ids": np.arange(60) % used, "y": np.random.default_rng(0).normal(size=60)}
    bridge = from_numpyro(grouped, rows, n_groups=n_groups)
    assert bridge.start["effect"].shape == (n_groups,)


def test_more_coefficients_than_rows_are_welcome():
    """Every row depends on all of them; a column of numbers that are all different is no index."""

    def wide(x, year, y):
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([40]).to_event(1))
        observe(x @ beta + beta[0] * year, y)

    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(30, 40)), "year": np.arange(30), "y": rng.normal(size=30)}
    assert from_numpyro(wide, rows).inputs == ("x", "year", "y")


def test_a_latent_value_for_every_row_of_a_file(tmp_path):
    """Where the rows are not in memory the index is looked at chunk by chunk."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"ids": np.arange(200), "y": np.zeros(200) + 0.1}
    pq.write_table(pa.table(columns), tmp_path / "one.parquet", row_group_size=64)
    message = refusal(grouped, str(tmp_path / "one.parquet"), n_groups=200)
    assert "every one of the 200 rows" in message
    columns["ids"][-1] = 0
    pq.write_table(pa.table(columns), tmp_path / "two.parquet", row_group_size=64)
    assert from_numpyro(grouped, str(tmp_path / "two.parquet"), n_groups=200).rows.n_rows == 200
