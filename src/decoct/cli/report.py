"""``decoct report``: a coreset file to one HTML page."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

from decoct.cli import output as out
from decoct.cli.options import OutputPath, Whole, require_different, seed_in_range, source

if TYPE_CHECKING:
    from decoct.coreset import Coreset


def report(
    file: Path,
    table: list[str] | None = None,
    /,
    *,
    output: OutputPath,
    posterior: Path | None = None,
    seed: Whole = 0,
) -> int:
    """Write one self-contained HTML page about a coreset: verdict, figures, pictures, provenance.

    With the table it is certified, in one pass, and drawn among all rows. Without --posterior the
    coreset is sampled first. Needs decoct[plots].

    For example:

    ```
    decoct report late.coreset.parquet flights.parquet -o report.html
    decoct report late.coreset.parquet -o report.html --posterior posterior.nc
    ```

    Exit codes: 0 written; 1 written, but the certificate says not to use the draws; 2 bad input.

    Parameters
    ----------
    file
        The coreset file that 'decoct build' wrote.
    table
        The table it was built from: a file, several files, a folder, or a quoted pattern.
    output
        The HTML file to write.
    posterior
        Draws that 'decoct sample' wrote for this coreset.
    seed
        Seed of the sampler, without --posterior.
    """
    seed_in_range(seed)
    require_different(output, file, "the coreset file")

    from decoct.files import require_writable, write_atomically

    require_writable(output, "--output")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise out.UsageError("Pictures need matplotlib; install decoct[plots].") from None

    import decoct
    from decoct.cli import summary
    from decoct.cli.posterior_file import read_posterior
    from decoct.plots.page import Parameter, report_page

    coreset = decoct.load(file)
    rows = decoct.rows(source(table)) if table else None
    try:
        if posterior is None:
            draws = coreset.sample(seed=seed)
        else:
            draws = read_posterior(posterior, coreset)
        check = None if rows is None else decoct.check(coreset, rows, draws)
        summary.add_unscaled(draws, coreset.model)
        page = report_page(
            coreset,
            rows,
            check=check,
            parameters=[Parameter(*astuple(line)) for line in summary.lines(draws)],
            title=f"Coreset {file.name}",
            reproduce=_commands(coreset, file, table),
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; nothing was written.") from None
    write_atomically(output, lambda path: Path(path).write_text(page, encoding="utf-8"))
    out.put(f"{output}: {'not certified' if check is None else check.verdict}")
    return out.DONE if check is None or check.ok else out.SHORT


def _commands(coreset: Coreset, file: Path, table: list[str] | None) -> str | None:
    """Return the command lines for a formula model; None for others, which the page words."""
    import shlex

    from decoct.models.formula import FAMILIES, FormulaModel

    model = coreset.model
    if not isinstance(model, FormulaModel):
        return None
    family = next(name for name, kind in FAMILIES.items() if type(model.base) is kind)
    asked = coreset.report
    goal = f"--size {asked.size_asked}" if asked.kl_asked is None else f"--kl {asked.kl_asked}"
    scale = model.base.to_dict().get("prior_scale")
    prior = f" --prior-scale {scale}" if isinstance(scale, float) and scale != 1.0 else ""
    source = shlex.join(table) if table else "TABLE"
    name = shlex.quote(file.name)
    return (
        f"decoct build {source} --formula {shlex.quote(model.design.formula)} "
        f"--family {family}{prior} {goal} --seed {asked.seed} -o {name}\n"
        f"decoct check {name} {source}"
    )
