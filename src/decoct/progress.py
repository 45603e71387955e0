"""Progress on anything that takes more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

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

PATIENCE = 1.0
"""Seconds of work before anything is shown."""


class _Rate(ProgressColumn):
    """Units per second, in short form."""

    def render(self, task: Task) -> Text:
        speed = task.speed or 0.0
        for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if speed >= unit:
                return Text(f"{speed / unit:.1f} {name}{task.fields['unit']}/s")
        return Text(f"{speed:.0f} {task.fields['unit']}/s")


class ProgressBar:
    """A bar on standard error that appears once the work has lasted a second.

    Parameters
    ----------
    show
        True, False, or None for "only on a terminal".
    """

    def __init__(self, show: bool | None = None) -> None:
        self.show = sys.stderr.isatty() if show is None else show
        self._started = time.monotonic()
        self._progress: Progress | None = None
        self._task: Any = None
        self._label, self._unit, self._total, self._done = "", "rows", 0.0, 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def begin(self, label: str, total: float, unit: str = "rows") -> None:
        """Start a new stretch of work of ``total`` units."""
        self._label, self._total, self._unit, self._done = label, total, unit, 0.0
        if self._progress is not None:
            if self._task is not None:
                self._progress.remove_task(self._task)
            self._task = self._progress.add_task(label, total=total, unit=unit)
        self._appear()

    def stretch(self, label: str, total: float, unit: str) -> Callable[[float], None]:
        """Start a new stretch of work; return what to call with the units done."""
        self.begin(label, total, unit)
        return self.advance

    def advance(self, units: float) -> None:
        """Tell of ``units`` more done."""
        self._done += units
        self._appear()
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done)

    def _appear(self) -> None:
        late = time.monotonic() - self._started > PATIENCE
        if not self.show or self._progress is not None or not late:
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            _Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task(self._label, total=self._total, unit=self._unit)
