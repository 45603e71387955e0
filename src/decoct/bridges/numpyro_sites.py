"""What a NumPyro model consists of, read from a trace in which nothing is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions import biject_to

from decoct.bridges.numpyro_trace import Program, Site, is_latent
from decoct.bridges.probing import as_arrays, quoted
from decoct.errors import ModelError

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
            f"The model cannot be run on {what} ({quoted(error)}). It was given {_listed(rows)} "
            f"row by row, and {_listed(program.constants)} whole. Pass every other array with one "
            "entry per row (a global array, data in numpyro.handlers.condition) among the rows, "
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


def _listed(rows: Mapping[str, Any]) -> str:
    return ", ".join(f"'{name}'" for name in rows) or "none"
