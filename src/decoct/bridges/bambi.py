"""Bambi: a formula model to decoct and back. ``decoct[bambi]``.

Importing this module does not import Bambi; calling it does. Coresets go back by
`Coreset.to_pymc`, as those of `decoct.from_pymc` do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from decoct.bridges.packages import Package, fitting, require
from decoct.bridges.pymc import PYMC
from decoct.errors import RequestError

if TYPE_CHECKING:
    import bambi

    from decoct.bridges.bambi_model import BambiModel

BAMBI = Package("bambi", "bambi", "bambi>=0.17,<0.22")
"""Each minor release of Bambi may change the PyMC graph that the bridge reads."""


def from_bambi(model: bambi.Model) -> BambiModel:
    """Convert a Bambi model for `decoct.build`.

    f_n is the log density of row n's response. Priors, levels, centring and the constants of
    transforms such as ``scale(x)`` or ``bs(x)`` are those that Bambi worked out from all rows: they
    are constants, never fitted again to the kept rows. Group-specific effects keep all their
    levels, with or without a kept row.

    Parameters
    ----------
    model
        A ``bambi.Model`` of the whole table; it is built if it is not yet.

    Returns
    -------
    BambiModel
        ``.rows`` are the design, row by row, for `decoct.build` and `decoct.check`:
        ``common_data``, the common terms' columns, centred as Bambi centres them; for each
        group-specific term the group's number and its predictor; the response. Draws have Bambi's
        names and coordinates.

    Raises
    ------
    ModelError
        ``weighted(...)`` responses, ``hsgp(..., by=...)``, rows that Bambi dropped, sparse designs,
        initial values; and what `decoct.from_pymc` refuses. The message says what to do.
    RequestError
        Bambi or PyMC is missing, too old or too new, or this is not a Bambi model.

    Notes
    -----
    Bambi centres common predictors where there is an intercept, samples the intercept of the
    centred ones, and reports

        Intercept = Intercept_centered − Σ_j x̄_j β_j,

    with the means x̄ of all rows. So do ``coreset.sample()`` and ``coreset.to_pymc()``; in the
    latter ``Intercept_centered`` is the free variable.

    Examples
    --------
    >>> import bambi, decoct, numpy as np, pandas as pd
    >>> x = np.linspace(-1.0, 1.0, 1000)
    >>> model = bambi.Model("y ~ x", pd.DataFrame({"x": x, "y": 2.0 * x + np.sin(40.0 * x)}))
    >>> bridge = decoct.from_bambi(model)
    >>> coreset = decoct.build(bridge, bridge.rows, size=15)
    >>> coreset.report.predicted_kl < 1e-3
    True
    """
    bmb: Any = require(BAMBI)
    require(replace(PYMC, extra=BAMBI.extra))
    with fitting(BAMBI):
        from decoct.bridges.bambi_model import bridge

    if not isinstance(model, bmb.Model):
        raise RequestError(f"model must be a bambi.Model, not a {type(model).__name__}.")
    return bridge(model)
