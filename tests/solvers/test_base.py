"""What the Hilbert solvers share, budget and protocol; and pursuit's contract."""

import numpy as np
import pytest

from decoct.solvers import Budget, FrankWolfe, OrthogonalPursuit, Solver
from tests.solvers.contract import ByTargetContract, SinglePrecisionContract, rows_of


class TestOrthogonalPursuitContract(ByTargetContract, SinglePrecisionContract):
    solver = OrthogonalPursuit()

    @pytest.mark.parametrize("kind", ["plain", "scales", "logistic"])
    def test_more_rows_are_never_worse(self, kind):
        path = self.solve(rows_of(kind, 60, 25, 0), sizes=tuple(range(1, 20)))
        losses = np.array([path[m].residual_norm for m in range(1, 20)])
        assert (np.diff(losses) <= 0.0).all()


class TestOrthogonalPursuitWithExchangesContract(ByTargetContract):
    solver = OrthogonalPursuit(exchanges=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": ()}, "sizes is empty"),
        ({"sizes": (0, 3)}, "size must be a whole number, at least 1, not 0"),
        ({"sizes": (3, True)}, "size must be a whole number, at least 1, not True"),
        ({"sizes": (3,), "iterations": 0}, "iterations must be a whole number, at least 1"),
    ],
)
def test_a_wrong_budget_is_a_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        Budget(**options)


def test_the_protocol_is_told_apart():
    assert isinstance(FrankWolfe(), Solver)
    assert isinstance(OrthogonalPursuit(), Solver)
    assert not isinstance(object(), Solver)
