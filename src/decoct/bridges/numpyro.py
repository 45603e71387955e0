"""NumPyro: any model with one plate over its rows, to decoct and back. ``decoct[numpyro]``.

Importing this module does not import NumPyro; calling it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from decoct.bridges.packages import Package, fitting, require
from decoct.errors import RequestError

if TYPE_CHECKING:
    from decoct.bridges.numpyro_model import NumPyroModel

NUMPYRO = Package("numpyro", "numpyro", "numpyro>=0.21")
"""Older releases import names that JAX has removed."""


def from_numpyro(
    model: Callable[..., Any], rows: Any, /, plate: str = "data", **constants: Any
) -> NumPyroModel:
    """Convert a NumPyro model for `decoct.build`.

    f_n is the log density of row n, summed over all observed sites in the plate; the prior is
    everything else, on the unconstrained scale of NumPyro's samplers.

    Parameters
    ----------
    model
        A NumPyro model, with or without handlers (`reparam`, `scope`, ...). Its data are its
        arguments, with the rows on their first axis. Plates of groups and the like are allowed if
        their sizes do not follow the rows.
    rows
        Argument name -> value. Arrays with as many entries along their first axis as the plate is
        long are the rows; all else is constant. Or any table that `decoct.rows` takes, also one
        that does not fit in memory: columns named as arguments are the rows.
    plate
        Name of the plate over the rows.
    **constants
        More arguments, the same for any rows; also for an array that happens to be as long as the
        plate.

    Returns
    -------
    NumPyroModel
        ``.rows`` are the row-wise arguments, for `decoct.build` and `decoct.check`;
        ``.unconstrain`` turns NumPyro's draws into those of `decoct.check`.

    Raises
    ------
    ModelError
        No such plate; a plate that subsamples; a latent site per row, or discrete; an observed
        site outside the plate; sizes or constants worked out from the rows. The message names the
        site and the remedy.
    RequestError
        NumPyro is missing or too old; an argument is unknown or given twice.

    Notes
    -----
    The model is run once on all rows if they are in memory, and on a few of them. Everything is
    evaluated in float64, whatever JAX's and NumPyro's flags.

    Examples
    --------
    >>> import decoct, numpy as np, numpyro, numpyro.distributions as dist
    >>> def model(x, y=None):
    ...     slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    ...     with numpyro.plate("data", len(x)):
    ...         numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)
    >>> x = np.linspace(-1.0, 1.0, 1000)
    >>> bridge = decoct.from_numpyro(model, {"x": x, "y": 2.0 * x})
    >>> coreset = decoct.build(bridge, bridge.rows, size=10)
    >>> coreset.report.predicted_kl < 1e-6
    True
    """
    require(NUMPYRO)
    with fitting(NUMPYRO):
        from decoct.bridges.numpyro_model import bridge

    if not callable(model):
        raise RequestError(
            f"model must be a function with NumPyro sites, not a {type(model).__name__}."
        )
    return bridge(model, rows, plate, constants)
