"""Figures 1 and 2 of the Hilbert coresets paper, in their quick form."""

import numpy as np
import pytest

import decoct
from decoct.constructions import Hilbert
from decoct.solvers import FrankWolfe
from experiments.common import read_csv
from experiments.hilbert import figure_1, figure_2

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    figure_1.main(["--quick", "--output", str(folder)])
    figure_2.main(["--quick", "--output", str(folder)])
    return folder


def medians(table, x):
    return {(row["method"], row[x]): float(row["kl_median"]) for row in table}


@pytest.mark.parametrize("name", ["figure_1", "figure_2_abcd", "figure_2_e", "figure_2_f"])
def test_every_picture_is_written(results, name):
    assert (results / f"{name}.png").read_bytes().startswith(PNG)


def test_figure_1_has_the_numbers_of_eq_6_3_and_6_5(results):
    table = read_csv(results / "figure_1.csv")
    assert list(table[0]) == ["row", "y", "sensitivity", "fisher_norm", "alignment"]
    y, sensitivity, norm, aligned = (
        np.array([float(row[column]) for row in table])
        for column in ("y", "sensitivity", "fisher_norm", "alignment")
    )
    expected = 1.0 + (y - y.mean()) ** 2 / (np.mean(y**2) - y.mean() ** 2)
    np.testing.assert_allclose(sensitivity, expected, rtol=1e-4)
    offsets = y - y.sum() / (1 + len(y))
    products = 1 / (1 + len(y)) + np.outer(offsets, offsets)  # Eq. 6.5 in one dimension
    np.testing.assert_allclose(norm**2, np.diag(products), rtol=1e-4)
    cosines = products.sum(axis=1) / (norm * np.sqrt(products.sum()))
    np.testing.assert_allclose(aligned, cosines, rtol=1e-4, atol=1e-5)
    # The inner product prefers the row that the odds like least to the one they like most.
    assert aligned[sensitivity.argmin()] > aligned[sensitivity.argmax()]


def test_figure_1_has_no_trials(tmp_path, capsys):
    with pytest.raises(SystemExit):
        figure_1.main(["--trials", "3", "--output", str(tmp_path)])
    assert "no trials" in capsys.readouterr().err


def test_figure_2_has_its_columns_and_every_method(results):
    for name, x in (("figure_2_e", "M"), ("figure_2_e_long", "M"), ("figure_2_f", "J")):
        table = read_csv(results / f"{name}.csv")
        assert {"method", "M", x, "kl_q25", "kl_median", "kl_q75", "trials"} <= set(table[0])
        assert all(
            float(row["kl_q25"]) <= float(row["kl_median"]) <= float(row["kl_q75"]) for row in table
        )
    sizes = read_csv(results / "figure_2_e.csv")
    methods = [curve.name for curve in figure_2.PAPER + figure_2.BEYOND]
    assert {(row["method"], int(row["M"])) for row in sizes} == {
        (name, m) for name in methods for m in figure_2.QUICK_SIZES
    }


def test_frank_wolfe_is_far_below_subsampling_and_what_is_beyond_it_further(results):
    found = medians(read_csv(results / "figure_2_e.csv"), "M")
    # Rand's KL is about N/M times a unit exponential, 20 nats on average; FW's hardly varies.
    assert found["FW", "50"] < 1.0
    assert found["FW", "50"] < found["Rand", "50"]
    assert found["FW", "100"] < 0.6 * found["FW", "50"]
    # D + 1 = 3 numbers a row: three or four rows give the target exactly.
    for exact in ("GIGA", "orthogonal pursuit", "FW, fully corrective"):
        assert found[exact, "10"] < figure_2.FLOOR


def test_frank_wolfe_falls_by_a_constant_factor_per_iteration_in_the_end(results):
    """Theorem 4.4: the exponent per iteration settles; one over M squared would halve it."""
    found = medians(read_csv(results / "figure_2_e_long.csv"), "M")
    before, middle, after = (np.log(found["FW", m]) for m in ("700", "1100", "1500"))
    assert 0.75 < (middle - after) / (before - middle) < 1.0
    one_over_m_squared = np.log(1500 / 1100) / np.log(1100 / 700)
    assert (middle - after) / (before - middle) > one_over_m_squared


def test_projections_come_up_to_the_exact_norm(results):
    """Theorem 5.2."""
    found = medians(read_csv(results / "figure_2_f.csv"), "J")
    exact = found["FW", ""]
    errors = [abs(np.log(found["FW", str(j)] / exact)) for j in (2, 10, 200)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < np.log(1.3)


def test_kl_and_coreset_are_those_of_the_library():
    data = figure_2.Data.of(seed=3, trial=1)
    path = figure_2.coresets(FrankWolfe(), data, data.vectors(), (5, 50))
    method = Hilbert(FrankWolfe(), norm="fisher", exact=True)
    built = decoct.path(figure_2.MODEL, {"x": data.y}, (5, 50), method=method)
    full = decoct.laplace(figure_2.MODEL, {"x": data.y})
    for m, one in zip((5, 50), built, strict=True):
        np.testing.assert_array_equal(path[m][0], one.indices)
        np.testing.assert_allclose(path[m][1], one.weights, rtol=1e-6)
        coreset = decoct.laplace(figure_2.MODEL, one.rows, weights=one.weights)
        expected = decoct.kl_gaussian(full, coreset)
        assert figure_2.kl(data.y, path[m]) == pytest.approx(expected, rel=1e-6)
