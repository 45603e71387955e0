"""How many rows, draws and candidates merge-and-reduce works with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoct.errors import RequestError


@dataclass(frozen=True)
class Plan:
    """Sizes of merge-and-reduce.

    Attributes
    ----------
    leaf
        Rows that are compressed at once.
    node
        Rows a part keeps.
    draws
        S, four fifths to fit and one fifth held out.
    pool
        Candidate rows of a leaf.
    exchanges
        Most sweeps of swaps.
    reach
        Posterior sd up to which the parts are to be right as well; 1 for the draws alone.
    """

    leaf: int
    node: int
    draws: int
    pool: int
    exchanges: int
    reach: float

    @classmethod
    def of(cls, options: Mapping[str, Any], size: int, dim: int) -> Plan:
        """Return the plan for coresets of ``size`` rows of a model with ``dim`` parameters.

        ``options`` has the values asked for, None for a default, as `checked_options` returns them.
        """
        node = options["node"] or size + min(300, max(50, dim * (dim + 3)))
        return cls(
            leaf=options["leaf"] or max(20_000, 50 * node),
            node=node,
            draws=options["draws"] or min(2000, max(600, 4 * node)),
            pool=options["pool"] or max(600, 3 * node),
            exchanges=options["exchanges"],
            reach=options["reach"],
        )


def checked_options(size: int, **given: Any) -> dict[str, Any]:
    """Return the options of a plan, or refuse one that cannot be meant."""
    least = {"leaf": 1, "node": size, "draws": 10, "pool": 1, "exchanges": 0}
    options = {
        name: None if given[name] is None else whole(name, given[name], bound)
        for name, bound in least.items()
    }
    reach = given["reach"]
    number = isinstance(reach, int | float | np.number) and not isinstance(reach, bool)
    if not number or not 1.0 <= float(reach) < np.inf:
        raise RequestError(f"reach must be a number of sd, at least 1, not {reach!r}.")
    return {**options, "reach": float(reach)}


def whole(option: str, value: Any, least: int) -> int:
    """Return an option that is a whole number, or say which it has to be."""
    number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not number or value < least:
        raise RequestError(f"{option} must be a whole number, at least {least}, not {value!r}.")
    return int(value)
