"""The reader thread: never far ahead, never left behind, never silent."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from decoct.data.base import read_ahead


@pytest.fixture(autouse=True)
def interruptible():
    """A run in the background may have been started with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("decoct-reader")]


def test_items_come_in_order():
    assert list(read_ahead(lambda: range(1000), 2)) == list(range(1000))
    assert list(read_ahead(list, 2)) == []
    assert list(read_ahead(lambda: [None, None], 1)) == [None, None]
    assert not readers()


@pytest.mark.parametrize("depth", [1, 3])
def test_the_thread_is_never_further_ahead(depth):
    made = []

    def source():
        for i in range(50):
            made.append(i)
            yield i

    for i in read_ahead(source, depth):
        time.sleep(0.001)
        assert len(made) <= i + 1 + depth


def test_no_thread_before_the_first_item():
    read_ahead(lambda: range(3), 2)
    assert not readers()


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_what_the_thread_raises_is_raised_here(error):
    def source():
        yield 1
        raise error

    items = read_ahead(source, 2)
    assert next(items) == 1
    with pytest.raises(type(error)):
        next(items)
    assert not readers()


def test_an_early_end_closes_the_source():
    closed = threading.Event()

    def source():
        try:
            yield from range(10**9)
        finally:
            closed.set()

    for item in read_ahead(source, 2):
        if item == 3:
            break
    assert closed.is_set()
    assert not readers()


def test_an_error_in_the_consumer_ends_the_thread():
    items = read_ahead(lambda: range(10**9), 2)
    next(items)
    with pytest.raises(ZeroDivisionError):
        items.throw(ZeroDivisionError())
    assert not readers()


def test_impatience_leaves_no_thread_behind():
    """A second Ctrl-C, while the thread is waited for, is heard only when it has ended."""
    inside, go_on = threading.Event(), threading.Event()

    def source():
        yield 1
        inside.set()
        go_on.wait(10)
        yield 2

    items = read_ahead(source, 1)
    next(items)
    inside.wait(10)

    def interrupt():
        while not items.gi_running:  # it is being closed
            time.sleep(0.005)
        time.sleep(0.2)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)
        go_on.set()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        items.close()
    assert go_on.is_set()
    assert not readers()
