"""``decoct plot``: pictures of a coreset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from decoct.cli import options as opt
from decoct.cli import output as out
from decoct.runtime.files import write_atomically

if TYPE_CHECKING:
    from decoct.coreset import Coreset

NAMES: tuple[str, ...] = ("kept_rows", "kl_against_size", "intervals")


def plot(
    file: opt.CoresetPath,
    table: opt.BuiltFrom,
    /,
    *,
    output: opt.OutputPath,
    dask: opt.Dask = None,
    json: opt.Json = False,
) -> int:
    """Draw the kept rows, KL against size, and coreset against full-data posterior.

    Three PNG files. The second repeats the build at several sizes in one run; the third compares
    Laplace approximations. Needs decoct[plots].

    For example:

    ```
    decoct plot late.coreset.parquet flights.parquet -o pictures
    ```

    Parameters
    ----------
    output
        The folder for the pictures; made if it is not there.
    """
    paths = opt.require_folder(output, [f"{name}.png" for name in NAMES])
    files = dict(zip(NAMES, paths, strict=True))

    import decoct
    from decoct import plots
    from decoct.certificates.certificate import require_same_table

    coreset = decoct.load(file)
    with opt.interruption("not all pictures were written"):
        with opt.opened(table, dask) as rows:
            require_same_table(coreset, rows)
            pictures: dict[str, Any] = {}
            if coreset.size:
                pictures["kept_rows"] = plots.kept_rows(coreset, rows)
            curve = {"coreset": _curve(coreset, rows)}
            pictures["kl_against_size"] = plots.kl_against_size(curve)
            pictures["intervals"] = plots.intervals(_posteriors(coreset, rows))
        output.mkdir(exist_ok=True)
        for name, picture in pictures.items():
            write_atomically(files[name], picture.savefig)
    if json:
        out.put_json({name: str(files[name]) for name in pictures})
    else:
        out.put("\n".join(str(files[name]) for name in pictures))
    return out.DONE


def _curve(coreset: Coreset, rows: Any) -> tuple[list[int], list[float]]:
    """Return predicted KLs at sizes up to the coreset's, from one run."""
    import numpy as np

    import decoct
    from decoct.plots.kl_curve import ROUNDING

    site = coreset.site is not None
    first = 1 if site else coreset.dim
    sizes = np.unique(np.geomspace(max(1, first), max(coreset.size, first), 8).round())
    within = [0] * site + [int(size) for size in sizes if size <= coreset.n_rows]
    method = decoct.constructions.IteratedHilbert(site=site)
    path = decoct.path(coreset.model, rows, within, method=method, seed=coreset.report.seed)
    kls = [max(one.report.predicted_kl or 0.0, ROUNDING) for one in path]
    return [one.size for one in path], kls


def _posteriors(coreset: Coreset, rows: Any) -> dict[str, Any]:
    import numpy as np

    import decoct

    names = _names(coreset)
    fits = {
        "full data": decoct.laplace(coreset.model, rows),
        f"{coreset.size} rows kept": coreset.laplace(),
    }
    return {key: (names, fit.mean, np.sqrt(np.diag(fit.cov))) for key, fit in fits.items()}


def _names(coreset: Coreset) -> list[str]:
    """Return a name for each unconstrained parameter, in flattening order."""
    import jax
    import numpy as np

    model = coreset.model
    encoded = model.encode(coreset.rows, coreset.indices)
    labels = model.coords(coreset.rows)
    names: list[str] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(model.init(encoded))[0]:
        variable = jax.tree_util.keystr(path, simple=True, separator=".")
        _, known = labels.get(variable, ("", []))
        if variable == "beta" and len(known) == np.size(leaf):
            names += known
        elif np.ndim(leaf) == 0:
            names.append(variable)
        else:
            names += [f"{variable}[{i}]" for i in range(np.size(leaf))]
    return names
