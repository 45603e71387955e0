"""PyMC for the tests: skipped if it is missing, and its own import warnings are not ours."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pm = pytest.importorskip("pymc")

quiet = [
    pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS"),
    pytest.mark.filterwarnings("ignore::FutureWarning:arviz"),
]
"""What PyMC and PyTensor warn of on some machines."""
