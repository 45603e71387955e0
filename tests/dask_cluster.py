"""A cluster of worker processes on this machine, also where the machine is busy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import dask
from distributed import Client, LocalCluster
from distributed.utils import LoopRunner
from tornado.ioloop import IOLoop

ATTEMPTS = 6
"""Times that distributed's own thread is started: it is given ten seconds each time."""


@contextmanager
def running_loop() -> Iterator[IOLoop]:
    """Give a loop in a thread of its own, which a busy machine may be slow to start."""
    for attempt in range(ATTEMPTS):
        runner = LoopRunner()
        try:
            runner.start()
        except AssertionError:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            break
    try:
        yield runner.loop
    finally:
        runner.stop()


@contextmanager
def local_client(
    n_workers: int = 2, *, as_default: bool = True, **options: Any
) -> Iterator[Client]:
    """Give a client of a cluster of workers with a thread each, and stop both in the end.

    What Dask sets in the environment for its workers is taken back, for tests that come later. Some
    time after any worker was lost, 15 s by default, a cluster gives up a worker that is missing and
    has its name: one that is killed twice within that time.
    """
    if options.get("processes", True):
        options["host"] = "127.0.0.1"
    with (
        mock.patch.dict(os.environ),
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        running_loop() as loop,
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            loop=loop,
            **options,
        ) as cluster,
        Client(cluster, set_as_default=as_default) as client,
    ):
        yield client
