"""PyMC: a model whose data are in ``pm.Data``, to decoct and back. ``decoct[pymc]``.

Importing this module does not import PyMC; calling it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decoct.bridges.packages import Package, fitting, require
from decoct.errors import RequestError

if TYPE_CHECKING:
    import pymc

    from decoct.bridges.pymc_model import PyMCModel

PYMC = Package("pymc", "pymc", "pymc>=5.28,<7")
"""Another major release of PyMC may change the graphs that the bridge reads."""


def from_pymc(model: pymc.Model) -> PyMCModel:
    """Convert a PyMC model for `decoct.build`.

    f_n is the log density of row n, summed over all observed variables; the prior is that of the
    free variables on the unconstrained scale of PyMC's samplers, and of the potentials.

    Parameters
    ----------
    model
        A ``pm.Model``. Its responses, and whatever else has a value per row, are in ``pm.Data``,
        with the rows on the first axis: ``pm.Data`` as long as the responses are rows, unless their
        first dimension has another name. All other ``pm.Data`` keep the values they have now.

    Returns
    -------
    PyMCModel
        ``.rows`` are the row-wise data, for `decoct.build` and `decoct.check`; ``.unconstrain``
        turns PyMC's draws into those of `decoct.check`.

    Raises
    ------
    ModelError
        Data that are constants; a free variable per row, or discrete; ``pm.Minibatch`` or
        ``total_size``; responses of different lengths, or without a density per row; sizes or
        constants worked out from the rows. The message names the variable and the remedy.
    RequestError
        PyMC is missing, too old or too new, or this is not a PyMC model.

    Notes
    -----
    Everything is evaluated with JAX in float64; its flags and the environment stay as they are.

    Examples
    --------
    >>> import decoct, numpy as np, pymc as pm
    >>> x = np.linspace(-1.0, 1.0, 1000)
    >>> with pm.Model() as model:
    ...     covariate, response = pm.Data("x", x), pm.Data("y", 2.0 * x)
    ...     slope = pm.Normal("slope", 0.0, 1.0)
    ...     _ = pm.Normal("likelihood", slope * covariate, 1.0, observed=response)
    >>> bridge = decoct.from_pymc(model)
    >>> coreset = decoct.build(bridge, bridge.rows, size=10)
    >>> coreset.report.predicted_kl < 1e-6
    True
    """
    pm: Any = require(PYMC)
    with fitting(PYMC):
        from decoct.bridges.pymc_model import bridge

    if not isinstance(model, pm.Model):
        raise RequestError(f"model must be a pymc.Model, not a {type(model).__name__}.")
    return bridge(model)
