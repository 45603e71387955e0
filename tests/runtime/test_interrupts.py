"""A Ctrl-C that comes while a callback of C code runs is raised again, not printed."""

import gc
import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import decoct
from decoct.runtime.interrupts import terminable
from decoct.runtime.progress import ProgressBar


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def lost(monkeypatch):
    """Send a Ctrl-C and another error into callbacks of the garbage collector."""
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: printed.append(lost.exc_type))

    def callback(phase, info):
        gc.callbacks.remove(callback)
        signal.raise_signal(signal.SIGINT)

    def another(phase, info):
        gc.callbacks.remove(another)
        raise ZeroDivisionError

    def send():
        gc.callbacks.extend([callback, another])
        gc.collect()
        gc.collect()
        assert callback not in gc.callbacks
        assert printed == [ZeroDivisionError]

    return send


def test_a_lost_ctrl_c_arrives_with_the_next_rows(lost):
    after = []

    def work():
        with ProgressBar(False) as bar:
            lost()
            after.append("goes on")
            bar.advance(1)
            after.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert after == ["goes on"]


def test_or_with_the_next_stretch_of_work(lost):
    def work():
        with ProgressBar(False) as bar:
            lost()
            bar.begin("more", 10)
            pytest.fail("goes on")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_or_at_the_end(lost):
    with pytest.raises(KeyboardInterrupt), ProgressBar(False):
        lost()


def test_bars_within_bars(lost):
    def work():
        with ProgressBar(False) as outer:
            with ProgressBar(False):
                pass
            lost()
            outer.advance(1)
            pytest.fail("goes on")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_another_error_is_not_hidden(lost):
    def work():
        with ProgressBar(False):
            lost()
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        work()


def test_a_handler_of_the_users_own_decides():
    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with ProgressBar(False) as bar:
            signal.raise_signal(signal.SIGINT)
            bar.advance(1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]


def test_a_handler_set_meanwhile_stays():
    def own(number, frame):
        raise AssertionError

    with ProgressBar(False):
        signal.signal(signal.SIGINT, own)
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is own


def test_a_thread_changes_no_handler():
    seen = []

    def work():
        with ProgressBar(False) as bar:
            seen.append(signal.getsignal(signal.SIGINT))
            bar.advance(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_build_ends(lost, tmp_path, monkeypatch):
    """As found: JAX's own callback, in the middle of a build, swallowed the Ctrl-C."""
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(500, 2)), "y": (rng.random(500) < 0.5).astype(float)}
    method = decoct.constructions.IteratedHilbert
    step = method.step

    def interrupted(self, *arguments):
        lost()
        return step(self, *arguments)

    monkeypatch.setattr(method, "step", interrupted)
    saved = tmp_path / "saved"
    with pytest.raises(KeyboardInterrupt):
        decoct.build(decoct.models.LogisticRegression(), rows, size=20, checkpoint=saved)
    assert saved.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_both_signals_interrupt_and_are_told_apart(number):
    seen = []

    def work():
        with terminable() as received:
            seen.append(received)
            os.kill(os.getpid(), number)
            time.sleep(5.0)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen[0].by is number
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_handlers_are_put_back_and_ignored_signals_stay_so():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminable() as received:
            signal.raise_signal(signal.SIGINT)
            assert signal.getsignal(signal.SIGTERM) == received.handle
        assert received.by is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
