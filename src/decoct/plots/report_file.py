"""The report page of a coreset, from draws to file: what ``decoct report`` and Python share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from decoct.certificates.certificate import Certificate, check
from decoct.coreset import Coreset
from decoct.errors import RequestError
from decoct.plots.page import load_template, report_page
from decoct.plots.style import figure
from decoct.runtime.files import require_writable, write_atomically
from decoct.samplers.base import Draws
from decoct.samplers.datatree import to_datatree, unconstrained
from decoct.samplers.summary import add_unscaled, parameters


def write_report(
    coreset: Coreset,
    rows: Any = None,
    draws: xr.DataTree | np.ndarray | None = None,
    *,
    path: str | os.PathLike[str],
    seed: int = 0,
    title: str = "Bayesian coreset",
    reproduce: str | None = None,
) -> Certificate | None:
    """Write one self-contained HTML page about a coreset: verdict, figures, pictures, provenance.

    What ``decoct report`` writes, for coresets of any model: those of NumPyro, PyMC and Bambi
    models too, and of a `decoct.Model`, whose functions no file holds.

    Parameters
    ----------
    coreset
        The coreset.
    rows
        The table it was built from: it is certified, in one pass, and drawn among all rows. None
        says on the page that nothing is certified.
    draws
        Draws of its posterior, as `decoct.check` takes them: what ``coreset.sample()`` returned, or
        an array (n, d) or (chains, n, d) of unconstrained parameters, such as
        ``bridge.unconstrain(...)`` gives. None samples with NUTS.
    path
        The HTML file; it appears complete or not at all.
    seed
        Seed of the sampler where ``draws`` is None.
    title
        Heading of the page.
    reproduce
        The commands that made the coreset; None writes the Python calls.

    Returns
    -------
    Check or None
        The certificate on the page, if ``rows`` was given.

    Raises
    ------
    RequestError
        matplotlib or jinja2 is missing, the path cannot be written, or the draws do not fit the
        model.
    CoresetFileError
        The rows are not the ones the coreset was built from.

    Examples
    --------
    >>> import decoct, numpy as np, tempfile
    >>> rows = {"x": np.random.default_rng(0).normal(size=(1000, 3)), "y": np.arange(1000) % 2}
    >>> coreset = decoct.build(decoct.models.LogisticRegression(), rows, size=20)
    >>> draws = coreset.sample(draws=100, sampler=decoct.samplers.Laplace())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check = decoct.write_report(coreset, rows, draws, path=f"{folder}/report.html")
    >>> check.ok
    True
    """
    target = require_writable(path, "path")
    figure()  # before any work: are matplotlib and jinja2 there?
    load_template()
    if draws is None:
        draws = coreset.sample(seed=seed)
    z = unconstrained(draws, coreset.dim)
    if not np.isfinite(z).all():
        raise RequestError("The draws have values that are not finite; sample again.")
    if not isinstance(draws, xr.DataTree):
        space = coreset.density.space
        draws = to_datatree(coreset.model, space, coreset.rows, Draws(z, "given", {}))
    certificate = None if rows is None else check(coreset, rows, draws)
    shown = draws.copy()
    add_unscaled(shown, coreset.model)
    page = report_page(
        coreset,
        rows,
        check=certificate,
        parameters=parameters(shown),
        title=title,
        reproduce=reproduce,
    )
    write_atomically(target, lambda part: Path(part).write_text(page, encoding="utf-8"))
    return certificate
