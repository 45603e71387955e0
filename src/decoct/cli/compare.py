"""``decoct compare``: constructions side by side on a table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from decoct.cli import options as opt
from decoct.cli import output as out
from decoct.runtime.files import write_atomically

if TYPE_CHECKING:
    from decoct.building.comparison import Comparison


def compare(
    table: opt.Table,
    /,
    *,
    formula: opt.Formula,
    sizes: Annotated[list[int], Parameter(consume_multiple=True, validator=Number(gte=0))],
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    family: opt.Family = "gaussian",
    seed: opt.Seed = 0,
    draws: opt.Count = 400,
    prior_scale: opt.PriorScale = 1.0,
    standardize: opt.Standardize = True,
    dask: opt.Dask = None,
    json: opt.Json = False,
) -> int:
    """Compare ways to choose rows on your own table: KL and cost against size.

    Uniform, sensitivity, GIGA, SparseVI, moment matching and IteratedHilbert, and the Laplace
    approximation corrected by importance sampling, which keeps no rows. At a k-hat of 0.7 and more
    only a lower bound of the KL is known. ESS is the draws that importance sampling leaves; the KL
    is before that correction, for Laplace too.

    For example:

    ```
    decoct compare flights.parquet --formula "late ~ temp + C(origin)" \\
        --family bernoulli --sizes 50 100 200 -o compared
    ```

    Parameters
    ----------
    sizes
        Numbers of rows to keep, one or several; 0 keeps a site only.
    output
        A folder for compared.csv and compared.png; made if it is not there. Needs decoct[plots].
    seed
        Seed of everything random.
    draws
        Draws of each coreset posterior that the KL is measured at.
    """
    files = opt.require_folder(output, ("compared.csv", "compared.png")) if output else []

    import decoct
    from decoct.data.tables import traffic
    from decoct.models.formula.model import from_formula

    with opt.interruption("nothing was written"), opt.opened(table, dask) as rows:
        model = from_formula(
            formula, rows, family, prior_scale=prior_scale, standardize=standardize
        )
        result = decoct.compare(model, rows, sizes, draws=draws, seed=seed)
    if files:
        _write(result, *files)
    moved = traffic(rows)
    if json:
        lines = [asdict(line) for line in result.lines]
        out.put_json({"n_rows": result.n_rows, "lines": lines, "traffic": moved})
    else:
        out.put("\n".join([repr(result), *out.travelled(moved)]))
        for path in files:
            out.put(str(path))
    return out.DONE


def _write(result: Comparison, table: Path, picture: Path) -> None:
    from decoct.plots import comparison

    with opt.interruption("not all files were written"):
        table.parent.mkdir(exist_ok=True)
        write_atomically(table, lambda path: result.to_pandas().to_csv(path, index=False))
        write_atomically(picture, lambda path: comparison(result).savefig(path, format="png"))
