"""Stan: the rows of a coreset as the data of a Stan program.

Stan has no weights on observations. A program gets them by multiplying the log density of row n,

    log π_w(θ) = log π₀(θ) + Σ_n w_n f_n(θ),    target += w[n] * ..._lpdf(y[n] | ...),

so that what is written here is what its data block reads, with ``N`` and ``w``. A coreset's site,
which stands for the rows that are not kept, is ``d``, ``site_centre``, ``site_linear`` and
``site_precision``; ``site_terms``, ``site_effects``, ``site_scales`` and ``site_sizes`` are its
terms of third order. Stan itself is not needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from decoct.errors import RequestError
from decoct.models.site import GaussianSite, ThirdOrder
from decoct.runtime.files import require_writable, write_atomically

ROWS, WEIGHTS = "N", "w"
"""Names of the number of kept rows, and of their weights."""

SITE = ("d", "site_centre", "site_linear", "site_precision")
TERMS = (
    "site_terms",
    "site_effects",
    "site_scales",
    "site_sizes",
    "site_partners",
    "site_factors",
)
"""Names of what a site is made of, and its terms of third order."""

_IDENTIFIER = re.compile(r"[A-Za-z](?:\w*[A-Za-z0-9]|_?)", re.ASCII)


def write_stan(
    path: str | os.PathLike[str],
    rows: Mapping[str, np.ndarray],
    weights: np.ndarray,
    columns: Mapping[str, str] | Collection[str] | None = None,
    constants: Mapping[str, Any] | None = None,
    count_from_one: Collection[str] = (),
    site: GaussianSite | None = None,
) -> None:
    """Write the kept rows, their number and their weights as the JSON that Stan reads.

    Parameters
    ----------
    path
        The file; it appears complete or not at all.
    rows, weights
        The kept rows, column -> M values, and their weights.
    columns
        Columns to write, or column -> name in the Stan program. None writes them all.
    constants
        More data, such as ``{"J": 386}`` or ``{"prior_scale": 2.5}``: numbers or arrays.
    count_from_one
        Columns of group numbers counted from 0, as in Python, that the Stan program uses as
        indices: 1 is added. All others are written as they are.
    site
        What stands for all other rows, written without its constant.

    Raises
    ------
    RequestError
        A column is missing, has text, or is not finite; a name is not a Stan identifier, or is
        given twice; the file cannot be written.

    Notes
    -----
    Booleans become 0 and 1, whole numbers stay whole, and a column of vectors becomes an array of
    them: ``array[N] vector[D]`` or ``matrix[N, D]``. Columns of no rows are empty lists.

    With a site the data block has::

        int<lower=0> N;  // may be 0
        int<lower=1> d;
        vector[d] site_centre;
        vector[d] site_linear;
        matrix[d, d] site_precision;
        int<lower=0> site_terms;  // may be 0
        array[site_terms] int<lower=1> site_effects;
        vector[site_terms] site_scales;
        vector[site_terms] site_sizes;
        array[site_terms] int<lower=1> site_partners;
        vector[site_terms] site_factors;

    and the model block, once::

        vector[d] site_bent = site_precision * (theta - site_centre);
        vector[site_terms] site_z = (site_bent[site_effects]
                                     + site_factors .* site_bent[site_partners]) ./ site_scales;
        target += dot_product(site_linear, theta - site_centre)
                  - 0.5 * quad_form(site_precision, theta - site_centre)
                  + dot_product(site_sizes, site_z .* (0.19258643921647325 * square(site_z)
                  ./ (1 + square(site_z) / 64) - 0.5369641243218337));

    where theta is the vector of the model's likelihood parameters in decoct's order, by name and
    flat: for regressions the coefficients; for multilevel models what the rows depend on, effects
    of groups and not their scales, in units of the noise where it has a scale
    (``coreset.model.likelihood_params`` of bridges has names and shapes). No Jacobian belongs to
    it.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> from decoct.formats.stan import write_stan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_stan(f"{folder}/data.json", {"x": np.array([1.0, 2.0])}, np.array([3.0, 4.0]))
    ...     sorted(json.loads(pathlib.Path(f"{folder}/data.json").read_text()))
    ['N', 'w', 'x']
    """
    target = require_writable(path, "path")
    wanted = _find_wanted(rows, columns)
    absent = [name for name in count_from_one if name not in wanted]
    if absent:
        raise RequestError(
            f"count_from_one has '{absent[0]}', which is not among the columns written: "
            f"{', '.join(wanted)}."
        )
    entries: list[tuple[str, Any]] = [(ROWS, len(weights)), (WEIGHTS, weights)]
    if site is not None:
        parts = (np.asarray(site.dim), site.centre, site.linear, site.precision)
        entries += zip(SITE, parts, strict=True)
        none = ThirdOrder(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))
        terms = none if site.third_order is None else site.third_order
        count = len(terms.sizes)
        parts = (np.asarray(count), terms.effects + 1, terms.scales, terms.sizes)
        of_pairs = terms.effects + 1, np.zeros(count)
        if terms.partners is not None:
            of_pairs = terms.partners + 1, terms.factors
        entries += zip(TERMS, (*parts, *of_pairs), strict=True)
    for column, name in wanted.items():
        values = _numbers(np.asarray(rows[column]), f"Column '{column}'", column)
        entries.append((name, _from_one(values, column) if column in count_from_one else values))
    for name, value in (constants or {}).items():
        entries.append((name, _numbers(np.asarray(value), f"Constant '{name}'", None)))
    _check_names([name for name, _ in entries])
    written = {name: value if name == ROWS else value.tolist() for name, value in entries}
    text = json.dumps(written, allow_nan=False)
    write_atomically(target, lambda part: Path(part).write_text(text + "\n", encoding="utf-8"))


def _find_wanted(
    rows: Mapping[str, np.ndarray], columns: Mapping[str, str] | Collection[str] | None
) -> dict[str, str]:
    """Return column -> name in Stan."""
    if isinstance(columns, str):
        raise RequestError(f'columns is a string; give a list of names, such as ["{columns}"].')
    if isinstance(columns, Mapping):
        wanted = dict(columns)
    else:
        wanted = {column: column for column in (rows if columns is None else columns)}
    for column in wanted:
        if column not in rows:
            raise RequestError(f"The coreset has no column '{column}'; it has {', '.join(rows)}.")
    return wanted


def _numbers(values: np.ndarray, what: str, column: str | None) -> np.ndarray:
    """Return values that JSON and Stan can represent, or refuse them."""
    if values.dtype == object and values.ndim == 1:
        with contextlib.suppress(ValueError, TypeError):  # equally long lists become a matrix
            values = np.stack([np.asarray(one) for one in values])
    if values.dtype.kind == "b":
        return values.astype(np.int64)
    if values.dtype.kind not in "iuf":
        raise RequestError(
            f"{what} has the type {values.dtype}, and Stan's data are numbers. Leave it out with "
            "columns=, or write the numbers of its levels into the table before the build."
        )
    bad = ~np.isfinite(values.astype(float))
    if bad.any():
        where = "" if column is None else f" in kept row {int(np.argwhere(bad)[0][0])}"
        raise RequestError(f"{what} is not finite{where}; Stan needs finite numbers.")
    return values


def _from_one(values: np.ndarray, column: str) -> np.ndarray:
    if values.dtype.kind == "f" and np.all(values == np.floor(values)):
        values = values.astype(np.int64)
    if values.dtype.kind == "f" or values.min(initial=0) < 0:
        raise RequestError(
            f"Column '{column}' is in count_from_one, but its values are not whole numbers from 0."
        )
    return values + 1


def _check_names(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise RequestError(
                f"Two entries would have the name '{name}' in Stan ({ROWS} is the number of kept "
                f"rows, {WEIGHTS} their weights, and {', '.join(SITE + TERMS)} the site); "
                f"rename a column: columns={{'{name}': '{name}_1'}}."
            )
        if not _IDENTIFIER.fullmatch(name) or name.endswith("__"):
            raise RequestError(
                f"'{name}' is not a valid name in Stan, which has a letter, then letters, digits "
                f"and underscores. Rename it: columns={{'{name}': 'x'}}."
            )
