"""``decoct build``: a table to a coreset file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from decoct.cli import options as opt
from decoct.cli import output as out
from decoct.runtime.files import require_writable

if TYPE_CHECKING:
    from decoct.coreset import Coreset


def build(
    table: opt.Table,
    /,
    *,
    formula: opt.Formula,
    output: opt.OutputPath,
    family: opt.Family = "gaussian",
    size: opt.MaybeWhole = None,
    kl: float | None = None,
    method: str = "iterated-hilbert",
    site: bool = True,
    seed: opt.Seed = 0,
    prior_scale: opt.PriorScale = 1.0,
    standardize: opt.Standardize = True,
    checkpoint: Path | None = None,
    dask: opt.Dask = None,
    json: opt.Json = False,
    quiet: Annotated[bool, Parameter(alias="-q", negative=())] = False,
) -> int:
    """Compress a table to a few weighted rows that carry its posterior.

    Give --size (how many rows to keep) or --kl (the largest KL, in nats); the default is --kl
    0.01. The coreset is one Parquet file that R, DuckDB or pandas can read too.

    For example:

    ```
    decoct build flights.parquet --formula "late ~ temp + C(origin)" \\
        --family bernoulli --size 10 -o late.coreset.parquet
    decoct build "data/*.csv" --formula "trips ~ temp + C(hour)" \\
        --family poisson --kl 0.01 --checkpoint trips.npz -o trips.coreset.parquet
    decoct build "s3://bucket/clicks/*.parquet" --formula "click ~ C(site) + age" \\
        --family bernoulli --size 50 --dask tcp://scheduler:8786 -o clicks.coreset.parquet
    ```

    Exit codes: 0 done; 1 written, but short of what was asked; 2 bad input, nothing written;
    130 interrupted; 143 terminated.

    Parameters
    ----------
    output
        The coreset file to write.
    size
        Largest number of rows to keep; 0 keeps a site only.
    kl
        Keep the fewest rows that bring KL(coreset posterior || full posterior) to this many nats.
    method
        How rows and weights are chosen: iterated-hilbert, frank-wolfe, giga, importance-sampling,
        moment-matching, pursuit, sensitivity, sparse-vi or uniform. Only iterated-hilbert accepts
        --kl. iterated-hilbert and sparse-vi use draws of the current coreset posterior, and
        sparse-vi chooses among 2000 rows at a time. frank-wolfe, giga, importance-sampling and
        pursuit use draws of the Laplace approximation of the full posterior.
    site
        Let a Gaussian site, a quadratic in the coefficients, stand for all rows that are not kept.
        With --no-site, and by every method but iterated-hilbert, the weighted rows stand alone.
    seed
        The same seed on the same table gives the same coreset.
    checkpoint
        A file written after every round and removed at the end. After an interruption the same
        command resumes from the last finished round. All methods but iterated-hilbert and
        sparse-vi have one round, and start again. Without a checkpoint, Ctrl-C saves nothing.
    quiet
        Show no progress and no summary.
    """
    opt.require_apart(output, table)
    require_writable(output, "--output")
    if checkpoint is not None:
        opt.require_apart(checkpoint, table, "--checkpoint")
        opt.require_different(checkpoint, output, "the output", "--checkpoint")
        require_writable(checkpoint, "--checkpoint")

    from dataclasses import replace
    from functools import partial

    from decoct.building.driver import Request, run
    from decoct.constructions import IteratedHilbert
    from decoct.constructions.base import make_construction
    from decoct.coreset import Coreset
    from decoct.data.tables import counted_rows
    from decoct.models.formula.model import from_formula
    from decoct.runtime.progress import ProgressBar

    shown = False if quiet else None
    construction = make_construction(method)
    if not site and isinstance(construction, IteratedHilbert):
        construction = replace(construction, site=False)
    request = Request.checked(size=size, kl=kl, method=construction, sampler=None, seed=seed)
    try:
        with opt.opened(table, dask) as rows:
            with ProgressBar(shown):
                counted_rows(rows)
            request.sizes_for(rows.n_rows)  # refuses more rows than there are
            priors = {"prior_scale": prior_scale, "standardize": standardize}
            model = from_formula(formula, rows, family, **priors, progress=shown)
            save = partial(Coreset.save, path=output)
            (coreset,) = run(model, rows, request, shown, checkpoint, save)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_describe_interruption(checkpoint)) from None
    status, figures = coreset.report.status, _figures(coreset)
    if json:
        out.put_json({**figures, "file": str(output), "family": family})
    elif not quiet:
        out.put(_summary(figures, output))
    if not status.ok:
        out.complain(status.value)
    return out.DONE if status.ok else out.SHORT


def _describe_interruption(checkpoint: Path | None) -> str:
    if checkpoint is None or not checkpoint.exists():
        return "interrupted; nothing was written."
    from decoct.building.checkpoint import read_checkpoint

    rounds = len(read_checkpoint(checkpoint).get("infos", []))
    if not rounds:
        return (
            f"interrupted in the first round, which the same command starts again ({checkpoint})."
        )
    after = "1 round" if rounds == 1 else f"{rounds} rounds"
    return f"interrupted after {after}; the same command resumes from the checkpoint {checkpoint}."


def _figures(coreset: Coreset) -> dict[str, Any]:
    report, design = coreset.report, coreset.model.design  # type: ignore[attr-defined]
    return {
        "size": coreset.size,
        "n_rows": coreset.n_rows,
        "site": coreset.site is not None,
        "no_site": report.no_site,
        "predicted_kl": report.predicted_kl,
        "method": report.method["name"],
        "status": report.status.name,
        "ok": report.status.ok,
        "message": report.status.value,
        "formula": design.formula,
        "coefficients": list(design.names),
        "size_asked": report.size_asked,
        "kl_asked": report.kl_asked,
        "seed": report.seed,
        "rounds": len(report.rounds),
        "passes": report.passes,
        "evaluations": report.evaluations,
        "seconds": sum(report.seconds.values()),
        "traffic": report.traffic,
    }


def _summary(f: dict[str, Any], output: Path) -> str:
    kl = "not predicted" if f["predicted_kl"] is None else f"{f['predicted_kl']:.2g} nats"
    rest = ", a site for all others" if f["site"] else ""
    lines = [
        f"{len(f['coefficients'])} coefficients",
        f"{output}: {f['size']:,} of {f['n_rows']:,} rows kept{rest}, predicted KL {kl}",
        *([f"No site: {f['no_site']}."] if f["no_site"] else []),
        f"Rounds: {f['rounds']}; passes over the data: {f['passes']}; {f['seconds']:.1f} s",
        *out.travelled(f["traffic"]),
        f"Next: decoct sample {output} -o posterior.nc",
    ]
    return "\n".join(lines)
