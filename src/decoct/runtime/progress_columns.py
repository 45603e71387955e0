"""The columns of a progress bar; loaded when one is shown."""

from __future__ import annotations

from rich import progress
from rich.console import Console
from rich.filesize import pick_unit_and_suffix
from rich.text import Text


def make_progress() -> progress.Progress:
    """Return an empty bar on standard error."""
    description, bar = progress.TextColumn("{task.description}"), progress.BarColumn()
    times = progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
    console = Console(stderr=True)
    return progress.Progress(description, bar, _Pace(), *times, console=console, transient=True)


class _Pace(progress.ProgressColumn):
    """Per cent of the pass and units per second; "working" between passes, when no rows go by."""

    def render(self, task: progress.Task) -> Text:
        if task.total is None:
            return Text("working")
        speed = task.speed or 0.0
        size, prefix = pick_unit_and_suffix(int(speed), ["", "k", "M", "G"], 1000)
        rate = f"{speed / size:.1f} {prefix}{task.fields['unit']}/s"
        return Text(f"{task.percentage:>3.0f}% {rate}")
