"""A Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. If that is in a callback
which C code made (JAX has one in the garbage collector, for example), the exception is printed as
ignored and the program goes on. Long work therefore remembers that it was raised, and raises it
again at the next step.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
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
