"""Progress on anything that takes more than a second.

`begin` starts a task and `advance` counts what is done; both update the open bar, if there is one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from decoct.runtime.interrupts import Interrupts

PATIENCE = 1.0
"""Seconds of work before anything is shown."""

_open_bar: ContextVar[ProgressBar | None] = ContextVar("decoct_progress", default=None)


def begin(label: str, total: float, unit: str = "rows") -> None:
    """Start a new task of ``total`` units; each pass counts its rows again."""
    if (bar := _open_bar.get()) is not None:
        bar.begin(label, total, unit)


def advance(units: float, unit: str = "rows") -> None:
    """Count units done; those of another kind than the task's do not count."""
    if (bar := _open_bar.get()) is not None:
        bar.advance(units, unit)


def count_rows_of(table: Any) -> Callable[[int], None]:
    """Return a function that counts rows, unless the task is about another table's."""
    bar = _open_bar.get()
    return (lambda _: None) if bar is None or bar.total != table.n_rows else bar.advance


class ProgressBar:
    """A bar on standard error that appears once the work has lasted a second.

    It shows the task and its pass, the share done, units per second, and the time so far and left.
    With ``show`` None it appears on a terminal only. Shown or not, it makes sure that a Ctrl-C
    ends the work (`decoct.runtime.interrupts`).
    """

    def __init__(self, show: bool | None = None) -> None:
        self.show = sys.stderr.isatty() if show is None else show
        self._started = time.monotonic()
        self._progress: Any = None
        self._label, self._unit, self.total = "", "rows", 0.0
        self._done, self._passes = 0.0, 0
        self._interrupts = Interrupts()

    def __enter__(self) -> ProgressBar:
        self._interrupts.begin()
        self._outer = _open_bar.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._interrupts.end()
        _open_bar.reset(self._outer)
        if self._progress is not None:
            self._progress.stop()
        if kind is None:
            self._interrupts.check()

    def begin(self, label: str, total: float, unit: str = "rows") -> None:
        """Start a new task; see `begin`."""
        self._interrupts.check()
        self._label, self.total, self._unit = label, total, unit
        self._done, self._passes = 0.0, 0
        self._renew()

    def advance(self, units: float, unit: str | None = None) -> None:
        """Count ``units`` more, unless they are of another kind than the task's."""
        self._interrupts.check()
        if unit is not None and unit != self._unit:
            return
        moved, self._done = self._done > 0.0, self._done + units
        if self._done >= self.total:
            self._passes, self._done = self._passes + 1, 0.0
            self._renew()
        elif self._progress is None or not moved:
            self._renew()
        else:
            self._progress.update(self._task, completed=self._done)

    def _renew(self) -> None:
        """Replace the bar: an indeterminate one if nothing has been counted yet."""
        if not self.show or time.monotonic() - self._started <= PATIENCE:
            return
        if self._progress is None:
            self._progress = make_progress()
            self._progress.start()
        for task in self._progress.task_ids:
            self._progress.remove_task(task)
        moving = self._done > 0.0
        number = self._passes + moving
        label = self._label if number < 2 else f"{self._label}, pass {number}"
        total = self.total if moving else None
        self._task = self._progress.add_task(
            label, total=total, completed=self._done, unit=self._unit
        )


def make_progress() -> Any:
    """Return an empty bar of `rich`, which is loaded when one is shown, on standard error."""
    from rich import progress
    from rich.console import Console
    from rich.filesize import pick_unit_and_suffix
    from rich.text import Text

    class Pace(progress.ProgressColumn):
        """Per cent of the pass and units per second; "working" between passes."""

        def render(self, task: progress.Task) -> Text:
            if task.total is None:
                return Text("working")
            speed = task.speed or 0.0
            size, prefix = pick_unit_and_suffix(int(speed), ["", "k", "M", "G"], 1000)
            rate = f"{speed / size:.1f} {prefix}{task.fields['unit']}/s"
            return Text(f"{task.percentage:>3.0f}% {rate}")

    description, bar = progress.TextColumn("{task.description}"), progress.BarColumn()
    times = progress.TimeElapsedColumn(), progress.TimeRemainingColumn()
    console = Console(stderr=True)
    return progress.Progress(description, bar, Pace(), *times, console=console, transient=True)
