"""One self-contained HTML page about a coreset: verdict, figures, pictures, provenance."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from decoct._version import __version__
from decoct.certificates.certificate import Certificate
from decoct.coreset import Coreset
from decoct.errors import RequestError
from decoct.plots.coreset_scatter import kept_rows
from decoct.plots.style import COLOURS, DPI, GREY, dress, figure
from decoct.plots.weights import kept_weights
from decoct.report import Report, described
from decoct.samplers.automatic import Automatic
from decoct.samplers.summary import Parameter

MOST_ROWS = 200
"""Kept rows listed on the page, heaviest first."""

MOST_PARAMETERS = 60
"""Parameters in the picture of intervals, those furthest from 0; the table has them all."""

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1d1d1f; background: #fff;
       max-width: 62rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
.verdict { border-left: .5rem solid; padding: .7rem 1rem; margin: 1rem 0; background: #f7f7f8; }
.good { border-color: #009e73; } .usable { border-color: #e69f00; }
.bad { border-color: #d55e00; } .unknown { border-color: #6e6e6e; }
.figures { display: grid; gap: .8rem;
           grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); }
.figures div { background: #f7f7f8; padding: .6rem .8rem; }
.figures b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.figures span { color: #555; font-size: .9rem; }
.scroll { overflow: auto; max-height: 28rem; border: 1px solid #ddd; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { padding: .25rem .6rem; text-align: right; font-variant-numeric: tabular-nums;
         border-bottom: 1px solid #eee; }
th { position: sticky; top: 0; background: #f0f0f2; }
th:first-child, td:first-child { text-align: left; }
.scroll:has(.words) { max-height: none; } .words td { text-align: left; }
 .numbers td { white-space: nowrap; }
.words th { text-align: left; }
img { max-width: 100%; height: auto; } pre { background: #f7f7f8; padding: .8rem; overflow: auto; }
"""


def report_page(
    coreset: Coreset,
    rows: Any = None,
    *,
    check: Certificate | None = None,
    parameters: Sequence[Parameter] = (),
    title: str = "Bayesian coreset",
    reproduce: str | None = None,
) -> str:
    """Return a page that needs nothing but itself: no file, no script, no network.

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

    Raises
    ------
    RequestError
        matplotlib is missing.
    CoresetFileError
        The rows are not the ones the coreset was built from.
    """
    parts = [
        f"<h1>{_text(title)}</h1>",
        f"<p>{coreset.size:,} of {coreset.n_rows:,} rows, {_text(_model_line(coreset))}.</p>",
        _verdict(coreset, check),
        _figures(coreset, check),
    ]
    if parameters:
        parts += ["<h2>Posterior</h2>", *_posterior(parameters)]
    parts += ["<h2>Kept rows</h2>", _picture(kept_weights(coreset), "Weights of the kept rows")]
    if rows is not None:
        parts.append(_among_all(coreset, rows))
    parts += [_kept_table(coreset), "<h2>Provenance</h2>", *_provenance(coreset)]
    parts += ["<h2>How to reproduce</h2>", f"<pre>{_text(reproduce or _call(coreset))}</pre>"]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _model_line(coreset: Coreset) -> str:
    design = getattr(coreset.model, "design", None)
    kind = type(getattr(coreset.model, "base", coreset.model)).__name__
    if design is not None:
        return f"{kind} on {design.formula}"
    name = coreset.model.to_dict().get("name", kind)  # of a model of the user's own functions
    return kind if name in (kind, "") else f"{kind} {name}"


def _verdict(coreset: Coreset, check: Certificate | None) -> str:
    if check is None:
        predicted = coreset.report.predicted_kl
        kl = "not predicted" if predicted is None else f"predicted at {predicted:.2g} nats"
        says = f"Not certified. KL(coreset‖full) is {kl}; give the table to certify it."
        return f'<p class="verdict unknown"><strong>{_text(says)}</strong></p>'
    kind = check.grade.value if check.ok else "bad"
    says = check.verdict[0].upper() + check.verdict[1:] + "."
    caveat = f"What the certificate leaves open: {check.caveat}"
    return f'<p class="verdict {kind}"><strong>{_text(says)}</strong><br>{_text(caveat)}</p>'


def _figures(coreset: Coreset, check: Certificate | None) -> str:
    report = coreset.report
    shown = [
        ("rows kept", f"{coreset.size:,}"),
        ("rows in the table", f"{coreset.n_rows:,}"),
        ("passes over the data", f"{report.passes}"),
        ("full-data likelihoods evaluated", f"{report.evaluations / coreset.n_rows:,.0f}"),
        ("seconds to build", f"{sum(report.seconds.values()):,.1f}"),
    ]
    if check is not None:
        low, high = check.kl_interval
        divergences = [("KL(coreset‖full), nats", f"at least {low:.2g}")]
        if check.kl_is_known:
            divergences = [
                ("KL(coreset‖full), nats", f"{check.kl:.2g}"),
                ("its 95 % Monte Carlo interval", f"{low:.2g} to {high:.2g}"),
                ("KL(full‖coreset), nats", f"{check.forward_kl:.2g}"),
            ]
        shown = [
            *divergences,
            ("Pareto k-hat", f"{check.khat:.2f}"),
            ("effective draws after correction", f"{check.ess:,.0f} of {check.log_ratios.size:,}"),
            *shown,
        ]
    cells = (f"<div><b>{_text(value)}</b><span>{_text(name)}</span></div>" for name, value in shown)
    return f'<div class="figures">{"".join(cells)}</div>'


def _posterior(parameters: Sequence[Parameter]) -> list[str]:
    lines = [[_cell(value) for value in astuple(one)] for one in parameters]
    table = _table(("parameter", "mean", "sd", "5 %", "95 %", "R-hat", "ESS"), lines)
    shown, said = parameters, []
    if len(parameters) > MOST_PARAMETERS:
        shown = _furthest(parameters)
        said = [
            f"<p>The picture has {len(shown)} of {len(parameters):,} parameters: those whose mean "
            "is furthest from 0 in units of their sd. The table has all.</p>"
        ]
    return [*said, _picture(_intervals(shown), "Posterior intervals"), table]


def _furthest(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the parameters with the largest |mean|/sd, in the order they came in."""
    mean, sd = (np.array([getattr(one, name) for one in parameters]) for name in ("mean", "sd"))
    known = sd > 0.0  # a constant is nowhere near being told from 0 by its draws, nor is one draw
    away = np.divide(np.abs(mean), sd, out=np.zeros(len(sd)), where=known)
    chosen = np.sort(np.argsort(-away, kind="stable")[:MOST_PARAMETERS])
    return [parameters[i] for i in chosen]


def _intervals(parameters: Sequence[Parameter]) -> Any:
    """Draw the 90 % interval and the mean of every parameter, one a line."""
    picture = figure(10.0, 1.4 + 0.28 * len(parameters))
    axes = picture.add_subplot()
    lines = np.arange(len(parameters))
    axes.hlines(
        lines, [one.q5 for one in parameters], [one.q95 for one in parameters], COLOURS[0], lw=2.0
    )
    axes.plot([one.mean for one in parameters], lines, "o", color=COLOURS[0], markersize=5)
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    dress(axes, "Coreset posterior: mean and 90 % interval", "parameter value", "")
    axes.set_yticks(lines, [one.name for one in parameters])
    axes.set_ylim(len(parameters) - 0.4, -0.6)
    return picture


def _among_all(coreset: Coreset, rows: Any) -> str:
    try:
        return _picture(kept_rows(coreset, rows), "Kept rows among all rows")
    except RequestError as reason:  # a model without a design has no picture; the page says so
        return f"<p>No picture of the kept rows among all: {_text(str(reason))}</p>"


def _kept_table(coreset: Coreset) -> str:
    order = np.argsort(-coreset.weights, kind="stable")[:MOST_ROWS]
    columns = {name: values for name, values in coreset.rows.items() if np.ndim(values) == 1}
    matrices = [name for name in coreset.rows if name not in columns]
    lines = [
        [
            str(coreset.indices[i]),
            f"{coreset.weights[i]:,.4g}",
            *(_cell(values[i]) for values in columns.values()),
            *(_vector(coreset.rows[name][i]) for name in matrices),
        ]
        for i in order
    ]
    said = "" if len(order) == coreset.size else f" The {len(order)} heaviest are listed."
    note = f"<p>A weight says how many rows of the table a kept row stands for.{said}</p>"
    return note + _table(["row", "weight", *columns, *matrices], lines)


def _provenance(coreset: Coreset) -> list[str]:
    report = coreset.report
    options = {name: value for name, value in report.method.items() if name != "name"}
    lines = [
        ["method", report.method["name"]],
        *([f"its {name}", _option(value)] for name, value in options.items()),
        *([["sampler of its draws", _constructor(report.sampler)]] if report.sampler else []),
        ["status", f"{report.status.name}: {report.status.value}"],
        [
            "asked for",
            f"size {report.size_asked}"
            if report.kl_asked is None
            else f"KL {report.kl_asked} nats",
        ],
        ["seed", str(report.seed)],
        *([f"seconds, {phase}", f"{value:,.2f}"] for phase, value in report.seconds.items()),
        ["decoct", __version__],
    ]
    parts = [_table(["what", "value"], lines, kind="words")]
    if report.rounds:
        heads = list(dict.fromkeys(key for one in report.rounds for key in one))
        rounds = [
            [str(i + 1), *(_cell(one.get(h)) for h in heads)] for i, one in enumerate(report.rounds)
        ]
        parts += ["<p>Steps of the construction:</p>", _table(["step", *heads], rounds)]
    return parts


def _option(value: Any) -> str:
    return "default" if value is None else json.dumps(value)


def _call(coreset: Coreset) -> str:
    from decoct import constructions

    report = coreset.report
    asked = f"size={report.size_asked}" if report.kl_asked is None else f"kl={report.kl_asked}"
    if not hasattr(constructions, report.method["name"]) or report.method["name"] == "merge":
        return f"# made by {_constructor(report.method)}"
    return (
        f"import decoct\n\n{_bridged(coreset)}"
        "# names inside: decoct.solvers, decoct.constructions.hilbert.weighting, decoct.samplers\n"
        f"method = decoct.constructions.{_constructor(report.method)}\n"
        f"coreset = decoct.build(model, rows, {asked}, method=method{_sampler(report)}, "
        f"seed={report.seed})\n"
        "check = decoct.check(coreset, rows, coreset.sample())"
    )


def _sampler(report: Report) -> str:
    """Return the argument that names the sampler, if it was not the default."""
    if report.sampler in (None, described(Automatic())):
        return ""
    return f", sampler=decoct.samplers.{_constructor(report.sampler)}"


def _constructor(config: Any) -> str:
    """Return the expression of what `decoct.report.described` has described."""
    if not isinstance(config, dict):
        return repr(config)
    arguments = (f"{k}={_constructor(v)}" for k, v in config.items() if k != "name")
    return f"{config.get('name', 'dict')}({', '.join(arguments)})"


def _bridged(coreset: Coreset) -> str:
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


def _picture(picture: Any, alt: str) -> str:
    file = io.BytesIO()
    picture.savefig(file, format="png", dpi=DPI)
    data = base64.b64encode(file.getvalue()).decode()
    return f'<p><img alt="{_text(alt)}" src="data:image/png;base64,{data}"></p>'


def _table(headings: Iterable[str], lines: Iterable[Sequence[str]], kind: str = "numbers") -> str:
    head = "".join(f"<th>{_text(one)}</th>" for one in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in line)}</tr>" for line in lines
    )
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table class="{kind}">{inside}</table></div>'


def _cell(value: Any) -> str:
    if isinstance(value, (float, np.floating)):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _vector(values: np.ndarray) -> str:
    with np.printoptions(precision=3, threshold=8, edgeitems=3):
        return str(values)


def _text(words: str) -> str:
    return html.escape(str(words))
