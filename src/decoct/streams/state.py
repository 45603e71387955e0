"""What a stream has seen and kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from decoct.streams.incoming import Buffer, Layout
from decoct.streams.tree import Plan, Tree


@dataclass(frozen=True)
class State:
    """All that a stream has seen and kept; never changed in place.

    Attributes
    ----------
    layout
        The columns.
    buffer
        Rows that wait.
    tree
        The parts.
    plan
        Sizes; None before the first row.
    seconds
        Spent on updates.
    values
        The smallest few values of the response, where the model minds.
    """

    layout: Layout = field(default_factory=Layout)
    buffer: Buffer = field(default_factory=Buffer)
    tree: Tree = field(default_factory=Tree)
    plan: Plan | None = None
    seconds: float = 0.0
    values: tuple[float, ...] = ()
