"""Which NumPyro models have a coreset: one plate over the rows, nothing latent inside it.

What a model consists of is read from a trace in which nothing is computed. Sizes that silently
depend on the rows, such as a number of groups, are found by comparing the model on all rows (if in
memory) with the model on a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to

from decoct.bridges.numpyro_trace import Program, Site, is_latent
from decoct.bridges.per_row_latents import PER_ROW
from decoct.bridges.probing import PROBES, as_arrays, probe_indices, quoted, refuse_size
from decoct.data.base import Rows
from decoct.errors import ModelError

RESERVED = ("chain", "draw")
"""Dimensions that draws have already."""

CONSTANTS = "decoct.from_numpyro(model, rows, name=value)"


@dataclass(frozen=True)
class SiteFacts:
    """One site of a trace.

    Attributes
    ----------
    kind
        "sample", "deterministic", "plate", "param", ...
    latent, observed, factor, discrete
        What a sample site is; factors are observed too.
    distribution
        Name of its distribution.
    shape, unconstrained, batch, event_dim
        Shape of its value, of a latent one's unconstrained value, and of its distribution's batch;
        the number of axes of one event.
    event_dims
        Names of those axes, where the site has them: ``infer={"event_dims": [...]}``, as for ArviZ.
    plates
        The plates around it: name -> (axis from the right, size).
    size, subsample
        A plate's number of rows or groups, and how many of them it draws; None for all.
    """

    kind: str
    latent: bool = False
    observed: bool = False
    factor: bool = False
    discrete: bool = False
    distribution: str = ""
    shape: tuple[int, ...] = ()
    unconstrained: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()
    event_dim: int = 0
    event_dims: tuple[str, ...] = ()
    plates: tuple[tuple[str, tuple[int, int]], ...] = ()
    size: int = 0
    subsample: int | None = None

    @property
    def around(self) -> dict[str, tuple[int, int]]:
        """The plates around the site, innermost first."""
        return dict(self.plates)

    def width(self, dim: int) -> int:
        """Return how many values and distributions there are along a batch axis."""
        value = self.shape[: len(self.shape) - self.event_dim]
        return max(batch[dim] if len(batch) >= -dim else 1 for batch in (value, self.batch))


Facts = dict[str, SiteFacts]
"""Name -> site."""


def facts_of(program: Program, rows: Mapping[str, Any], what: str) -> Facts:
    """Return the sites of a model on some rows; none if all of its arguments are constants."""
    try:
        return _facts(program, as_arrays(rows))
    except Exception as error:
        raise ModelError(
            f"The model cannot be run on {what} ({quoted(error)}). It was given "
            f"{_join_names(rows)} row by row, and {_join_names(program.constants)} whole. Pass "
            "every other array with one entry per row (a global array, data in "
            "numpyro.handlers.condition) among the rows, "
            f"and everything else as a constant: {CONSTANTS}."
        ) from error


def _facts(program: Program, rows: Mapping[str, Any]) -> Facts:
    found: Facts = {}

    def run() -> None:
        found.update({name: _site_facts(site) for name, site in program.trace(rows).items()})

    try:
        jax.eval_shape(run)
    except jax.errors.JAXTypeError:
        # a size computed from values: run the model; later checks report the size
        run()
    return found


def _site_facts(site: Site) -> SiteFacts:
    if site["type"] == "plate":
        size, subsample = site["args"]
        return SiteFacts("plate", size=int(size), subsample=subsample)
    frames = site.get("cond_indep_stack") or ()
    plates = tuple((frame.name, (frame.dim, int(frame.size))) for frame in frames)
    if site["type"] != "sample":
        value = site["value"]
        shape = jnp.shape(value) if site["type"] == "deterministic" else ()
        return SiteFacts(site["type"], shape=tuple(shape), plates=plates)
    fn, shape = site["fn"], tuple(jnp.shape(site["value"]))
    latent = is_latent(site)
    discrete = latent and bool(fn.support.is_discrete)
    free = latent and not discrete
    return SiteFacts(
        "sample",
        latent=latent,
        observed=not latent,
        factor=site["infer"].get("is_auxiliary", False),
        discrete=discrete,
        distribution=type(fn).__name__,
        shape=shape,
        unconstrained=tuple(biject_to(fn.support).inverse_shape(shape)) if free else (),
        batch=tuple(fn.batch_shape),
        event_dim=len(fn.event_shape),
        event_dims=tuple(map(str, site["infer"].get("event_dims", ()))),
        plates=plates,
    )


def _join_names(rows: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in rows) or "none"


def plate_size(facts: Facts, plate: str) -> int:
    """Return the size of the data plate, or say which plates there are."""
    plates = {name: site for name, site in facts.items() if site.kind == "plate"}
    for name, site in plates.items():
        if site.subsample is not None and site.subsample != site.size:
            raise ModelError(
                f"Plate '{name}' draws a subsample of {site.subsample} out of {site.size}, and "
                "scales its log density, as the coreset's weights do already; remove "
                "subsample_size."
            )
    if plate in plates:
        return plates[plate].size
    if not plates:
        raise ModelError(
            f"The model has no plate named '{plate}', nor any other; put its observed sites in "
            f"one: 'with numpyro.plate(\"{plate}\", len(y)):'."
        )
    have = ", ".join(f"'{name}' of size {site.size}" for name, site in plates.items())
    raise ModelError(
        f"The model has no plate named '{plate}'; it has {have}. Name the one that runs over the "
        "rows: decoct.from_numpyro(model, rows, plate=...)."
    )


def examine(program: Program, table: Rows, whole: Facts | None) -> Facts:
    """Return the sites of a model on a few encoded rows, or refuse the model.

    ``whole`` has its sites on all rows; None where they do not fit in memory.
    """
    plate, n_rows = program.plate, table.n_rows
    found: list[tuple[int, Facts]] = []
    if whole is not None:
        found.append((n_rows, whole))
        _check_sites(whole, plate, n_rows, n_rows)
    for n in PROBES:
        rows = table.take(probe_indices(n_rows, n))
        facts = facts_of(program, rows, f"{n} of the rows")
        _check_sites(facts, plate, n, n_rows)
        found.append((n, facts))
    n, few = found[-1]
    for many, facts in found[:-1]:
        _check_same_shapes(facts, many, few, n, plate)
    # only now: sizes that depend on the rows would cause other errors first
    for n, facts in found:
        _check_one_value_a_row(facts, plate, n)
    if not any(site.latent for site in few.values()):
        raise ModelError("The model has no latent site, and so no posterior.")
    return few


def axes(facts: Facts, plate: str) -> dict[str, tuple[str, ...]]:
    """Name the axes of latent and deterministic sites after plates and event_dims, as ArviZ does.

    A deterministic site has no event_dims; it can be given dimensions afterwards.
    """
    named = {}
    for name, site in facts.items():
        wanted = site.latent or site.kind == "deterministic"
        if wanted and (site.plates or site.event_dims) and plate not in site.around:
            named[name] = _axis_names(name, site)
    return named


def _axis_names(name: str, site: SiteFacts) -> tuple[str, ...]:
    deepest = max((-dim for dim, _ in site.around.values()), default=0)
    event = site.event_dim if site.kind == "sample" else max(0, len(site.shape) - deepest)
    names = [f"{name}_dim_{axis}" for axis in range(len(site.shape))]
    for plate, (dim, size) in site.plates:
        axis = len(site.shape) - event + dim
        if axis >= 0 and site.shape[axis] == size and plate not in RESERVED:
            names[axis] = plate
    if len(site.event_dims) == site.event_dim and not set(site.event_dims) & set(RESERVED):
        names[len(names) - site.event_dim :] = site.event_dims
    return tuple(names)


def _check_sites(facts: Facts, plate: str, n: int, n_rows: int) -> None:
    size = plate_size(facts, plate)
    if size not in (n, n_rows):
        raise ModelError(
            f"Plate '{plate}' has size {size}, but the table has {n_rows} rows; give it their "
            "number, such as len(y)."
        )
    for name, site in facts.items():
        if site.kind == "param":
            raise ModelError(
                f"Site '{name}' is a numpyro.param, which has no prior; give it one with "
                "numpyro.sample."
            )
        if site.latent:
            _check_latent(name, site, plate)
        elif site.observed and not site.factor and plate not in site.around:
            _refuse_outside(name, site, plate, size)
    if not any(site.observed and plate in site.around for site in facts.values()):
        raise ModelError(
            f"No site in plate '{plate}' is observed; is an obs= argument missing among the rows?"
        )


def _check_latent(name: str, site: SiteFacts, plate: str) -> None:
    if plate in site.around:
        raise ModelError(
            f"Site '{name}' in plate '{plate}' is latent. If it should be observed, its obs= "
            f"argument is missing among the rows. {PER_ROW}"
        )
    if site.discrete:
        raise ModelError(
            f"Latent site '{name}' is discrete ({site.distribution}); decoct needs continuous "
            "parameters. Sum it out by hand, for instance with "
            "numpyro.distributions.MixtureGeneral or a logsumexp."
        )


def _refuse_outside(name: str, site: SiteFacts, plate: str, size: int) -> None:
    others = ", ".join(f"'{other}' of size {n}" for other, (_, n) in site.plates)
    if others:
        raise ModelError(
            f"Observed site '{name}' lies in plate {others} and not in '{plate}' of size {size}: "
            "a coreset has the rows of one table, and so of one plate. Give both sites one, with "
            "rows that have both; or let the other data be constants, and their log density a "
            "numpyro.factor outside the plate, which counts as prior."
        )
    raise ModelError(
        f"Observed site '{name}' lies outside plate '{plate}'; move it inside, so that it has one "
        "value per row. Put terms that do not belong to a row into a numpyro.factor; it counts as "
        "prior."
    )


def _check_one_value_a_row(facts: Facts, plate: str, n: int) -> None:
    for name, site in facts.items():
        if not site.observed or plate not in site.around:
            continue
        # the site's own frame: of two plates of one name the trace keeps the last
        dim, size = site.around[plate]
        if size != n or site.width(dim) != n:
            values = size if size != n else site.width(dim)
            raise ModelError(
                f"Observed site '{name}' has {values} values along plate '{plate}' when the model "
                f"is given {n} rows: its data do not follow the rows. Pass every row-wise array as "
                "an argument among the rows."
            )


def _check_same_shapes(many: Facts, n: int, few: Facts, m: int, plate: str) -> None:
    for name in many.keys() ^ few.keys():
        raise ModelError(
            f"Site '{name}' exists on some numbers of rows only ({n} against {m}); give the model "
            "the same sites for any number."
        )
    for name, site in many.items():
        if site.latent and site.shape != few[name].shape:
            remedy = f"Pass the number of groups as a constant: {CONSTANTS}."
            refuse_size(f"Latent site '{name}'", site.shape, n, few[name].shape, m, remedy)
        for other, (_, size) in site.plates:
            smaller = few[name].around.get(other, (0, size))[1]
            if other != plate and smaller != size:
                raise ModelError(
                    f"Plate '{other}' around site '{name}' has size {size} on {n} rows and "
                    f"{smaller} on {m}: two plates follow the rows, '{plate}' and this one. Only "
                    "one may; give the other a fixed size, as a constant."
                )
