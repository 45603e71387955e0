"""``decoct report``: a coreset file to one HTML page."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from decoct.cli import options as opt
from decoct.cli import output as out

if TYPE_CHECKING:
    from decoct.coreset import Coreset


def report(
    file: opt.CoresetPath,
    table: opt.BuiltFrom | None = None,
    /,
    *,
    output: opt.OutputPath,
    posterior: opt.Posterior = None,
    dask: opt.Dask = None,
    seed: opt.Seed = 0,
) -> int:
    """Write one self-contained HTML page about a coreset: verdict, figures, pictures, provenance.

    With the table, the coreset is certified in one pass and plotted among all rows. Without
    --posterior the coreset is sampled first. Needs decoct[plots]. A file cannot store models of
    your own functions (decoct.Model, NumPyro, PyMC, Bambi): for these, use decoct.write_report in
    Python.

    For example:

    ```
    decoct report late.coreset.parquet flights.parquet -o report.html --posterior posterior.nc
    decoct report late.coreset.parquet -o report.html
    ```

    Exit codes: 0 written; 1 written, but the certificate is neither good nor usable; 2 bad input.

    Parameters
    ----------
    output
        The HTML file to write.
    seed
        Seed of the sampler, without --posterior.
    """
    if dask is not None and not table:
        raise out.UsageError("--dask needs a table for the workers to read; give the table too.")
    opt.require_output(output, file)

    import decoct

    coreset = decoct.load(file)
    draws = posterior and out.read_posterior(posterior)
    with (
        opt.interruption("nothing was written"),
        opt.opened(table, dask) if table else nullcontext() as rows,
    ):
        check = decoct.write_report(
            coreset,
            rows,
            draws,
            path=output,
            seed=seed,
            title=f"Coreset {file.name}",
            reproduce=_commands(coreset, file, table),
        )
    out.put(f"{output}: {'not certified' if check is None else check.verdict}")
    return out.DONE if check is None or check.ok else out.SHORT


def _commands(coreset: Coreset, file: Path, table: list[str] | None) -> str | None:
    """Return the command lines of a default build; None for others, which the page describes."""
    import shlex

    from decoct.constructions import IteratedHilbert
    from decoct.models.formula.model import FAMILIES, FormulaModel
    from decoct.report import described
    from decoct.samplers import Automatic

    model = coreset.model
    default = coreset.report.method == described(IteratedHilbert())
    default &= coreset.report.sampler in (None, described(Automatic()))
    if not isinstance(model, FormulaModel) or not default:
        return None
    family = next(name for name, kind in FAMILIES.items() if type(model.base) is kind)
    asked = coreset.report
    goal = f"--size {asked.size_asked}" if asked.kl_asked is None else f"--kl {asked.kl_asked}"
    scale = model.base.to_dict().get("prior_scale")
    prior = f" --prior-scale {scale}" if isinstance(scale, float) and scale != 1.0 else ""
    plain = bool((model.design.scale == 1.0).all() and (model.design.shift == 0.0).all())
    prior += " --no-standardize" if plain else ""
    source = shlex.join(table) if table else "TABLE"
    name = shlex.quote(file.name)
    return (
        f"decoct build {source} --formula {shlex.quote(model.design.formula)} "
        f"--family {family}{prior} {goal} --seed {asked.seed} -o {name}\n"
        f"decoct check {name} {source}"
    )
