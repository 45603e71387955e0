"""The columns of a progress bar; loaded when one is shown."""

from __future__ import annotations

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


def make_progress() -> Progress:
    """Return an empty bar on standard error."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        _Share(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


class _Share(ProgressColumn):
    """Per cent of the pass; nothing between passes, when no rows go by."""

    def render(self, task: Task) -> Text:
        return Text("    " if task.total is None else f"{task.percentage:>3.0f}%")


class _Rate(ProgressColumn):
    """Units per second, in short form."""

    def render(self, task: Task) -> Text:
        if task.total is None:
            return Text("working")
        speed = task.speed or 0.0
        for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if speed >= size:
                return Text(f"{speed / size:.1f} {name}{task.fields['unit']}/s")
        return Text(f"{speed:.0f} {task.fields['unit']}/s")
