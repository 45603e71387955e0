"""The frameworks promote ranks inside; the strict flag of the other tests is not for them."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _ranks_may_be_promoted():
    with jax.numpy_rank_promotion("allow"):
        yield
