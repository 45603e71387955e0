"""The report of a coreset, one HTML page: what ``decoct report`` and Python share.

`page.html` is the Jinja template of the page; this module computes what it shows.
"""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Sequence
from dataclasses import astuple
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from decoct.certificates.certificate import Certificate
from decoct.certificates.certificate import check as certify
from decoct.coreset import Coreset
from decoct.errors import RequestError
from decoct.plots.rows_and_weights import kept_rows, kept_weights
from decoct.plots.style import COLOURS, DPI, GREY, figure, style_axes
from decoct.report import Report, described
from decoct.runtime.files import require_writable, write_atomically
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Draws
from decoct.samplers.datatree import to_datatree, unconstrained
from decoct.samplers.summary import Parameter, add_unscaled
from decoct.samplers.summary import parameters as summarise

MOST_ROWS = 200
"""Kept rows listed on the page, heaviest first."""

MOST_PARAMETERS = 60
"""Parameters in the picture of intervals, those furthest from 0; the table has them all."""


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
    models too, and of a `decoct.Model`, whose functions no file stores.

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
    Certificate or None
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
    _load_template()
    if draws is None:
        draws = coreset.sample(seed=seed)
    z = unconstrained(draws, coreset.dim, coreset.fingerprint)
    if not isinstance(draws, xr.DataTree):
        space = coreset.density.space
        draws = to_datatree(coreset.model, space, coreset.rows, Draws(z, "given", {}))
    certificate = None if rows is None else certify(coreset, rows, draws)
    shown = draws.copy()
    add_unscaled(shown, coreset.model)
    page = report_page(
        coreset,
        rows,
        check=certificate,
        parameters=summarise(shown),
        title=title,
        reproduce=reproduce,
    )
    write_atomically(target, lambda part: Path(part).write_text(page, encoding="utf-8"))
    return certificate


def report_page(
    coreset: Coreset,
    rows: Any = None,
    *,
    check: Certificate | None = None,
    parameters: Sequence[Parameter] = (),
    title: str = "Bayesian coreset",
    reproduce: str | None = None,
) -> str:
    """Return a self-contained page: no other file, no script, no network.

    Parameters
    ----------
    coreset
        The coreset.
    rows
        The table it was built from, for the picture of kept rows among all; None leaves it out.
    check
        The certificate; None says on the page that there is none.
    parameters
        The posterior, one entry a scalar parameter; none leaves the section out.
    title
        Heading of the page.
    reproduce
        The commands that made the coreset; None writes the Python call.

    Returns
    -------
    str
        The HTML.

    Raises
    ------
    RequestError
        matplotlib or jinja2 is missing.
    CoresetFileError
        The rows are not the ones the coreset was built from.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> coreset = decoct.build(model, rows, size=5)
    >>> decoct.plots.report_page(coreset).startswith("<!DOCTYPE html>")
    True
    """
    template = _load_template()
    report = coreset.report
    drawn = _choose_furthest(parameters)
    scatter, refusal = None, None
    if rows is not None and coreset.size:
        try:
            scatter = _encode(kept_rows(coreset, rows))
        except RequestError as reason:  # a model without a design; the page says so
            refusal = str(reason)
    step_columns = list(dict.fromkeys(name for step in report.rounds for name in step))
    columns, kept = _list_kept_rows(coreset)
    predicted = report.predicted_kl
    return template.render(
        title=title,
        coreset=coreset,
        model=_describe_model(coreset),
        check=check,
        prediction="not predicted" if predicted is None else f"predicted at {predicted:.2g} nats",
        figures=_list_figures(coreset, check),
        parameters=[[_format(value) for value in astuple(one)] for one in parameters],
        drawn=drawn,
        intervals=_encode(_draw_intervals(drawn)) if drawn else None,
        weights=_encode(kept_weights(coreset)) if coreset.size else None,
        scatter=scatter,
        refusal=refusal,
        columns=columns,
        kept=kept,
        provenance=_list_provenance(report),
        step_columns=step_columns,
        steps=[
            [i, *(_format(step.get(name)) for name in step_columns)]
            for i, step in enumerate(report.rounds, 1)
        ],
        recipe=reproduce or _write_call(coreset),
    )


def _load_template() -> Any:
    """Return the page's template, or say that jinja2 is missing."""
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError:
        raise RequestError("The report page needs jinja2; pip install 'decoct[plots]'.") from None
    text = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    options = {"autoescape": True, "trim_blocks": True, "undefined": StrictUndefined}
    return Environment(**options).from_string(text)


def _describe_model(coreset: Coreset) -> str:
    design = getattr(coreset.model, "design", None)
    kind = type(getattr(coreset.model, "base", coreset.model)).__name__
    if design is not None:
        return f"{kind} on {design.formula}"
    name = coreset.model.to_dict().get("name", kind)  # of a model of the user's own functions
    return kind if name in (kind, "") else f"{kind} {name}"


def _list_figures(coreset: Coreset, check: Certificate | None) -> dict[str, str]:
    figures = {}
    if check is not None:
        low, high = check.kl_interval
        if check.kl_is_known:
            figures["KL(coreset‖full), nats"] = f"{check.kl:.2g}"
            figures["its 95 % Monte Carlo interval"] = f"{low:.2g} to {high:.2g}"
            figures["KL(full‖coreset), nats"] = f"{check.forward_kl:.2g}"
        else:
            figures["KL(coreset‖full), nats"] = f"at least {low:.2g}"
        figures["Pareto k-hat"] = f"{check.khat:.2f}"
        draws = check.log_ratios.size
        figures["effective draws after correction"] = f"{check.ess:,.0f} of {draws:,}"
        sample = f"{check.sampled_rows:,}, and second-order sums of all"
        figures["rows evaluated at the draws"] = "all" if check.is_exact else sample
    report = coreset.report
    return figures | {
        "rows kept": f"{coreset.size:,}",
        "rows in the table": f"{coreset.n_rows:,}",
        "passes over the data": f"{report.passes}",
        "full-data likelihoods evaluated": f"{report.evaluations / coreset.n_rows:,.0f}",
        "seconds to build": f"{sum(report.seconds.values()):,.1f}",
    }


def _choose_furthest(parameters: Sequence[Parameter]) -> Sequence[Parameter]:
    """Return the parameters with the largest |mean|/sd, in the order they came in."""
    if len(parameters) <= MOST_PARAMETERS:
        return parameters
    mean, sd = (np.array([getattr(one, name) for one in parameters]) for name in ("mean", "sd"))
    # draws of a constant, or a single draw, do not show how far it is from 0
    away = np.divide(np.abs(mean), sd, out=np.zeros(len(sd)), where=sd > 0.0)
    chosen = np.sort(np.argsort(-away, kind="stable")[:MOST_PARAMETERS])
    return [parameters[i] for i in chosen]


def _draw_intervals(parameters: Sequence[Parameter]) -> Any:
    """Draw the 90 % interval and the mean of every parameter, one a line."""
    picture = figure(10.0, 1.4 + 0.28 * len(parameters))
    axes = picture.add_subplot()
    lines = np.arange(len(parameters))
    axes.hlines(
        lines, [one.q5 for one in parameters], [one.q95 for one in parameters], COLOURS[0], lw=2.0
    )
    axes.plot([one.mean for one in parameters], lines, "o", color=COLOURS[0], markersize=5)
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    style_axes(axes, "Coreset posterior: mean and 90 % interval", "parameter value", "")
    axes.set_yticks(lines, [one.name for one in parameters])
    axes.set_ylim(len(parameters) - 0.4, -0.6)
    return picture


def _list_kept_rows(coreset: Coreset) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns, numbers first, and the heaviest rows."""
    names = sorted(coreset.rows, key=lambda name: np.ndim(coreset.rows[name]) != 1)
    order = np.argsort(-coreset.weights, kind="stable")[:MOST_ROWS]
    lines = [
        [
            str(coreset.indices[i]),
            f"{coreset.weights[i]:,.4g}",
            *(_format(coreset.rows[name][i]) for name in names),
        ]
        for i in order
    ]
    return names, lines


def _list_provenance(report: Report) -> dict[str, str]:
    options = {f"its {name}": value for name, value in report.method.items() if name != "name"}
    by_size = report.kl_asked is None
    return {
        "method": report.method["name"],
        **{name: "default" if v is None else json.dumps(v) for name, v in options.items()},
        **({"sampler of its draws": _write_constructor(report.sampler)} if report.sampler else {}),
        "status": f"{report.status.name}: {report.status.value}",
        "asked for": f"size {report.size_asked}" if by_size else f"KL {report.kl_asked} nats",
        "seed": str(report.seed),
        **{f"seconds, {phase}": f"{value:,.2f}" for phase, value in report.seconds.items()},
        "decoct": version("decoct"),
    }


def _write_call(coreset: Coreset) -> str:
    from decoct import constructions

    report = coreset.report
    asked = f"size={report.size_asked}" if report.kl_asked is None else f"kl={report.kl_asked}"
    if not hasattr(constructions, report.method["name"]) or report.method["name"] == "merge":
        return f"# made by {_write_constructor(report.method)}"
    sampler = f", sampler=decoct.samplers.{_write_constructor(report.sampler)}"
    if report.sampler in (None, described(Automatic())):
        sampler = ""
    return (
        f"import decoct\n\n{_write_model(coreset)}"
        "# names inside: decoct.solvers, decoct.constructions.hilbert.weighting, decoct.samplers\n"
        f"method = decoct.constructions.{_write_constructor(report.method)}\n"
        f"coreset = decoct.build(model, rows, {asked}, method=method{sampler}, "
        f"seed={report.seed})\n"
        "check = decoct.check(coreset, rows, coreset.sample())"
    )


def _write_constructor(config: Any) -> str:
    """Return the expression of what `decoct.report.described` has described."""
    if not isinstance(config, dict):
        return repr(config)
    arguments = (f"{k}={_write_constructor(v)}" for k, v in config.items() if k != "name")
    return f"{config.get('name', 'dict')}({', '.join(arguments)})"


def _write_model(coreset: Coreset) -> str:
    """Return the line that makes decoct's model of one of NumPyro, PyMC or Bambi."""
    spec = coreset.model.to_dict()
    name, constants = spec.get("name") or "your_model", spec.get("constants", {})
    if spec.get("kind") == "numpyro":
        given = "".join(
            f", {key}={'...' if isinstance(value, dict) else repr(value)}"
            for key, value in constants.items()
        )
        return f"model = decoct.from_numpyro({name}, rows, plate={spec['plate']!r}{given})\n"
    if spec.get("kind") in ("bambi", "pymc"):
        return f"model = decoct.from_{spec['kind']}(your_model)\nrows = model.rows\n"
    return ""


def _encode(picture: Any) -> str:
    """Return a PNG image of a figure in base64."""
    file = io.BytesIO()
    picture.savefig(file, format="png", dpi=DPI)
    return base64.b64encode(file.getvalue()).decode()


def _format(value: Any) -> str:
    if isinstance(value, np.ndarray):
        with np.printoptions(precision=3, threshold=8, edgeitems=3):
            return str(value)
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}"
    return "" if value is None else str(value)
