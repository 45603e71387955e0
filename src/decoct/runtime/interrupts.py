"""A Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. If that is in a callback
of C code (JAX has one in the garbage collector, for example), the exception is printed and ignored.
Long work therefore records that it was raised, raises it again at the next chunk, and does not
print it (`Interrupts`).
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], Any]


class Interrupts:
    """Exceptions that signal handlers raised since `begin` and that have not arrived.

    Handlers of the user still decide what a signal does: only what they raise is recorded.
    Outside the main thread, where no signal can be handled, nothing is changed.
    """

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._handlers: dict[signal.Signals, tuple[Handler, Handler]] = {}
        self._unraisable = sys.unraisablehook

    def begin(self) -> None:
        """Watch the handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                watched = self._watch(handler)
                self._handlers[number] = handler, watched
                signal.signal(number, watched)
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._report_others

    def check(self) -> None:
        """Raise again what a handler raised, if anything."""
        if self._raised is not None and threading.current_thread() is threading.main_thread():
            raise self._raised

    def end(self) -> None:
        """Put the handlers back."""
        for number, (handler, watched) in self._handlers.items():
            if signal.getsignal(number) is watched:  # no other was set since
                signal.signal(number, handler)
        if sys.unraisablehook == self._report_others:
            sys.unraisablehook = self._unraisable
        self._handlers = {}

    def _report_others(self, unraisable: sys.UnraisableHookArgs) -> None:
        if self._raised is None or unraisable.exc_value is not self._raised:
            self._unraisable(unraisable)

    def _watch(self, handler: Handler) -> Handler:
        def watched(number: int, frame: FrameType | None) -> Any:
            try:
                return handler(number, frame)
            except BaseException as error:
                self._raised = error
                raise

        return watched


class Received:
    """Which signal came last: ``by`` is SIGINT or SIGTERM, or None."""

    def __init__(self) -> None:
        self.by: signal.Signals | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt."""
        self.by = signal.Signals(number)
        raise KeyboardInterrupt


@contextlib.contextmanager
def terminable() -> Iterator[Received]:
    """Raise KeyboardInterrupt on SIGTERM as on SIGINT, inside the block.

    Signals that are ignored stay so, as do handlers of the user's own for SIGINT. Outside the main
    thread, where no signal can be handled, nothing is changed.
    """
    received = Received()
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    defaults = {signal.SIGINT: (signal.default_int_handler,), signal.SIGTERM: (signal.SIG_DFL,)}
    before = {one: signal.getsignal(one) for one in SIGNALS}
    taken = [one for one in SIGNALS if before[one] in defaults[one]]
    for one in taken:
        signal.signal(one, received.handle)
    try:
        yield received
    finally:
        for one in taken:
            signal.signal(one, before[one])
