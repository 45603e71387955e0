"""`NumPyroModel`, what `decoct.from_numpyro` returns. Loading this module loads NumPyro."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from decoct.bridges.arguments import (
    check_arguments,
    describe_constant,
    parameter_names,
    plain_number,
    positional,
    split_rows,
)
from decoct.bridges.base import BridgeModel, InputColumns, Original, SiteDensity
from decoct.bridges.numpyro_checks import Facts, axes, examine, facts_of, plate_size
from decoct.bridges.numpyro_trace import Program, WeightedModel
from decoct.bridges.per_row_latents import check_latents
from decoct.bridges.probing import PROBES, as_arrays, common_fields, probe, probe_indices
from decoct.coreset import Coreset
from decoct.data.arrays import ArrayRows
from decoct.data.encoded import EncodedRows
from decoct.data.tables import rows as as_rows
from decoct.errors import ModelError
from decoct.runtime.precision import float64

IMPROPER = ("ImproperUniform", "MaskedDistribution")
"""Distributions of latent sites that have no integral of 1."""


class NumPyroModel(BridgeModel):
    """A NumPyro model as decoct's: made by `decoct.from_numpyro`.

    Parameters are the unconstrained values of the latent sites, by name, as NumPyro's own samplers
    use them: θ = T(z), with log|dT/dz| in the prior.

    Examples
    --------
    >>> import decoct, numpy as np, numpyro, numpyro.distributions as dist
    >>> def model(x):
    ...     mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    ...     with numpyro.plate("data", len(x)):
    ...         numpyro.sample("obs", dist.Normal(mu, 1.0), obs=x)
    >>> decoct.from_numpyro(model, {"x": np.arange(100.0)}).rows.n_rows
    100
    """

    kind: ClassVar[str] = "numpyro"
    predicts: ClassVar[str] = "numpyro.infer.Predictive"

    def to_numpyro(self, coreset: Coreset) -> tuple[WeightedModel, tuple[Any, ...]]:
        """Return the posterior of weighted rows as a NumPyro model; see `Coreset.to_numpyro`."""
        rows, weights = coreset.rows, coreset.weights
        if not coreset.size:  # NumPyro has no plate of size 0
            rows = {name: values[:1] for name, values in self.template.items()}
            weights = np.zeros(1)
        kept = {name: jnp.asarray(np.asarray(rows[name])) for name in self.inputs}
        given = positional(self.program.model, {**self.program.constants, **kept})
        names, latents = tuple(given), tuple(sorted(self.start))
        site = None if coreset.site is None else SiteDensity(self, coreset.site)
        weighted = WeightedModel(self.program, self.inputs, names, weights, site, latents)
        return weighted, tuple(given.values())

    def unconstrain(self, samples: Mapping[str, Any]) -> Float[np.ndarray, "chains S d"]:
        """Return NumPyro's draws as the flat unconstrained ones that `decoct.check` takes.

        Parameters
        ----------
        samples
            Latent site -> values (chains, S, ...): ``mcmc.get_samples(group_by_chain=True)``.
            Other sites are ignored.

        Raises
        ------
        ModelError
            A latent site is missing.

        Examples
        --------
        >>> import decoct, numpy as np, numpyro, numpyro.distributions as dist
        >>> def model(x):
        ...     mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
        ...     with numpyro.plate("data", len(x)):
        ...         numpyro.sample("obs", dist.Normal(mu, 1.0), obs=x)
        >>> bridge = decoct.from_numpyro(model, {"x": np.arange(100.0)})
        >>> bridge.unconstrain({"mu": np.zeros((4, 250))}).shape
        (4, 250, 1)
        """
        return self.flattened(samples, "latent site", "mcmc.get_samples(group_by_chain=True)")

    def to_dict(self) -> dict[str, Any]:
        constants = {k: describe_constant(v) for k, v in self.program.constants.items()}
        return {**super().to_dict(), "plate": self.program.plate, "constants": constants}


@float64
def bridge(
    model: Callable[..., Any], given: Any, plate: str, constants: Mapping[str, Any]
) -> NumPyroModel:
    """Return a NumPyro model as decoct's; the arguments are those of `decoct.from_numpyro`."""
    names, further, whole = parameter_names(model), {}, None
    constants = {name: plain_number(value) for name, value in constants.items()}
    if isinstance(given, Mapping):
        arguments = check_arguments(given, constants, names)
        whole = facts_of(Program(model, plate, {**arguments, **constants}), {}, "the rows")
        given, further = split_rows(arguments, plate_size(whole, plate))
    table = as_rows(given)
    program = Program(model, plate, {**further, **constants})
    inputs = _inputs(table.columns, names, program.constants)
    encoded = EncodedRows(table, InputColumns(inputs))
    if whole is None and isinstance(table, ArrayRows):
        everything = encoded.take(np.arange(encoded.n_rows))
        whole = facts_of(program, everything, "the rows")
    return _assemble(program, encoded, whole)


def _inputs(
    columns: tuple[str, ...], names: tuple[str, ...] | None, constants: Mapping[str, Any]
) -> tuple[str, ...]:
    known = columns if names is None else names
    inputs = tuple(name for name in columns if name in known and name not in constants)
    if not inputs:
        raise ModelError(
            f"None of the table's columns ({', '.join(columns)}) is an argument of the model "
            f"({', '.join(names or ())}); rename the columns."
        )
    return inputs


def _assemble(program: Program, table: EncodedRows, whole: Facts | None) -> NumPyroModel:
    facts = examine(program, table, whole)
    shapes = {name: site.unconstrained for name, site in facts.items() if site.latent}
    few = table.take(probe_indices(table.n_rows, PROBES[-1]))
    own = program.prior_means(shapes, as_arrays(few))
    probed = probe(program.evaluate, shapes, table, own)
    fields = common_fields(program, facts, probed, table)
    dims = axes(facts, program.plate)
    made = NumPyroModel(
        name=getattr(program.model, "__name__", type(program.model).__name__),
        axes=tuple((name, dims[name]) for name in fields["named"] if name in dims),
        original=Original(table.raw),
        improper=tuple(k for k, s in facts.items() if s.latent and s.distribution in IMPROPER),
        **fields,
    )
    check_latents(made, made.start, table.raw)
    return made
