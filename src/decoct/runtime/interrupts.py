"""A Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. If that is in a callback
which C code made (JAX has one in the garbage collector, for example), the exception is printed as
ignored and the program goes on. Long work therefore remembers that it was raised, and raises it
again at the next step (`Interrupts`); and a whole command may insist on it, whatever it is at
(`insisting`).
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
    """What signal handlers raised since `begin`, for as long as it has not been seen to arrive.

    Handlers of the user's own go on deciding what a signal does: only what they raise is kept.
    Outside the main thread, where no signal can be handled, nothing is changed.
    """

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self._handlers: dict[signal.Signals, tuple[Handler, Handler]] = {}

    def begin(self) -> None:
        """Watch the handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                watched = self._watched(handler)
                self._handlers[number] = handler, watched
                signal.signal(number, watched)

    def check(self) -> None:
        """Raise again what a handler raised, if anything."""
        if self._raised is not None and threading.current_thread() is threading.main_thread():
            raise self._raised

    def end(self) -> None:
        """Put the handlers back."""
        for number, (handler, watched) in self._handlers.items():
            if signal.getsignal(number) is watched:  # nobody has set another one since
                signal.signal(number, handler)
        self._handlers = {}

    def _watched(self, handler: Handler) -> Handler:
        def watched(number: int, frame: FrameType | None) -> Any:
            try:
                return handler(number, frame)
            except BaseException as error:
                self._raised = error
                raise

        return watched


AGAIN = 0.25
"""Seconds after which a Ctrl-C that has vanished is raised once more."""


class Stopped:
    """Whether SIGINT or SIGTERM came, and which.

    Attributes
    ----------
    by
        The last signal, or None.
    """

    def __init__(self) -> None:
        self.by: signal.Signals | None = None
        self._main = threading.get_ident()
        self._again = False
        self._arrived = threading.Event()
        self._reminder: threading.Thread | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt; when reminded, only if the last one is nowhere to be seen."""
        reminded, self._again = self._again, False
        if reminded and (self._arrived.is_set() or _on_its_way()):
            return
        self.by = signal.Signals(number)
        if self._reminder is None:
            self._reminder = threading.Thread(target=self._remind, daemon=True)
            self._reminder.start()
        raise KeyboardInterrupt

    def arrived(self) -> None:
        """Remind no longer; when this returns, no reminder is on its way."""
        self._arrived.set()
        if self._reminder is not None:
            self._reminder.join()  # its time may have run out just before

    def _remind(self) -> None:
        while not self._arrived.wait(AGAIN):
            self._again = True
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(self._main, self.by or signal.SIGINT)
            else:
                signal.raise_signal(self.by or signal.SIGINT)


@contextlib.contextmanager
def insisting() -> Iterator[Stopped]:
    """Raise KeyboardInterrupt on SIGINT and SIGTERM, again and again until it leaves the block.

    Signals that are ignored stay so, as do handlers of the user's own for SIGINT. Outside the main
    thread, where no signal can be handled, nothing is changed.
    """
    stopped = Stopped()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    mine = {signal.SIGINT: (signal.default_int_handler,), signal.SIGTERM: (signal.SIG_DFL, None)}
    before = {one: signal.getsignal(one) for one in SIGNALS}
    taken = [one for one in SIGNALS if before[one] in mine[one]]
    for one in taken:
        signal.signal(one, stopped.handle)
    tell = sys.unraisablehook
    # it is raised again, so there is nothing to tell of one that Python ignored
    sys.unraisablehook = lambda lost: lost.exc_type is KeyboardInterrupt or tell(lost)
    try:
        yield stopped
    finally:
        try:
            stopped.arrived()
        finally:  # another signal may have come
            sys.unraisablehook = tell
            for one in taken:
                signal.signal(one, before[one] or signal.SIG_DFL)


def _on_its_way() -> bool:
    """Return whether a KeyboardInterrupt is being handled: blocks are left, files closed."""
    error = sys.exception()
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False
