"""A Dask cluster: tasks, their results, the bytes that are sent, and errors."""

from __future__ import annotations

import gc
import logging
from collections.abc import Generator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import dask.config
from distributed import Client, Future, as_completed, default_client

from decoct.data.dask_tasks import Failed, count_bytes
from decoct.errors import RequestError, RowsError

PATIENCE = 10
"""Seconds to wait for a scheduler to answer."""

ATTEMPTS = 3
"""Times that a client is started: distributed gives its own thread ten seconds to begin, and
ends in an AssertionError on a machine too busy for that."""


@dataclass
class Traffic:
    """Traffic so far.

    Attributes
    ----------
    sent
        Bytes from here to the scheduler: functions, draws, and the lists of tasks.
    received
        Bytes of sums, pools and rows that came here.
    rows_moved
        Rows that had to go from one worker to another, because a chunk lies across partitions: the
        smaller side of each border. The scheduler may send the larger one to a worker that waits,
        and its work stealing whole partitions, which are not counted.
    passes
        Passes over all rows.
    """

    sent: int = 0
    received: int = 0
    rows_moved: int = 0
    passes: int = 0


class Cluster:
    """A synchronous client of a Dask cluster, and its traffic; `close` closes it if it is owned."""

    def __init__(self, client: Client, is_owned: bool = False) -> None:
        if client.asynchronous:
            raise RequestError(
                "decoct waits for the cluster's answers, so it needs a client made with "
                "asynchronous=False."
            )
        self.client: Any = client  # its methods are typed for both of its modes at once
        self.traffic = Traffic()
        self._is_owned = is_owned
        self._running = 0
        self._since: int | None = None  # bytes sent before the first task that is under way

    @classmethod
    def of(cls, given: Any = None) -> Cluster:
        """Return the cluster behind a client, a cluster object or an address; None: the current."""
        if isinstance(given, Client):
            return cls(given)
        if given is None:
            try:
                return cls(default_client())
            except ValueError as error:
                raise RequestError(
                    "Dask collections need a running cluster; start one first "
                    "(client = dask.distributed.Client()), or pass rows(..., dask=ADDRESS)."
                ) from error
        try:
            client = _connect(given)
        except (OSError, ValueError, TypeError) as error:
            reason = str(error).partition("\n")[0] or type(error).__name__
            raise RequestError(
                f"No Dask scheduler answers at {given} ({reason}); check the address, of the form "
                "tcp://host:8786."
            ) from error
        return cls(client, is_owned=True)

    @property
    def n_threads(self) -> int:
        """Threads of all workers, at least 1."""
        return max(1, sum(self.client.nthreads().values()))

    def start(self, tasks: Sequence[Any]) -> list[Future]:
        """Start delayed tasks, whose results `collect` returns, or which `drop` cancels."""
        futures = self._compute(tasks)
        self._running += 1
        return futures

    def persist(self, task: Any) -> Future:
        """Have a delayed task computed, and kept on its worker for as long as the future lives."""
        return self._compute([task])[0]

    def collect(self, futures: Sequence[Future]) -> Generator[tuple[int, Any], None, None]:
        """Yield (number, result) as tasks finish; on any way out, cancel what is still running.

        If tasks fail, the error is that of the lowest number, so that the row it names does not
        depend on timing.
        """
        number = {future.key: i for i, future in enumerate(futures)}
        left = set(number.values())
        failed, error = len(futures), None
        done = as_completed(futures, loop=self.client.loop, with_results=True, raise_errors=False)
        try:
            for future, result in done:
                i = number[future.key]
                left.discard(i)
                wrong = self._find_error(future, result)
                if wrong is None:
                    if error is None:
                        self.traffic.received += count_bytes(result)
                        yield i, result
                elif i < failed:
                    failed, error = i, wrong
                if error is not None and min(left, default=failed) >= failed:
                    raise error
        finally:
            self._end(futures, [futures[i] for i in left])

    def drop(self, futures: Sequence[Future]) -> None:
        """Cancel started tasks whose results are no longer needed."""
        self._end(futures, list(futures))

    def wait(self, futures: Sequence[Future]) -> list[Any]:
        """Return the results of started tasks, in their order."""
        results = dict(self.collect(futures))
        return [results[i] for i in range(len(futures))]

    def gather(self, tasks: Sequence[Any]) -> list[Any]:
        """Return the results of delayed tasks, in their order."""
        return self.wait(self.start(tasks))

    def close(self) -> None:
        """Close the connection, if it was opened here."""
        if not self._is_owned:
            return
        log = logging.getLogger("distributed.client")
        level = log.level
        if self.client.status != "running":
            log.setLevel(logging.CRITICAL)  # not its attempts to connect again, with tracebacks
        try:
            self.client.close()
        finally:
            log.setLevel(level)

    def _compute(self, tasks: Sequence[Any]) -> list[Future]:
        if self._since is None:
            self._since = self._count_bytes_out()
        try:
            # the user decides whether a table is persisted; no warning about a large graph
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}):
                return self.client.compute(list(tasks))
        except Exception as error:
            if self.client.status == "running":
                raise
            raise self._explain_loss() from error

    def _end(self, futures: Sequence[Future], unfinished: list[Future]) -> None:
        if unfinished and self.client.status == "running":
            self.client.cancel(unfinished, force=True)
        for future in futures:  # a traceback that is kept would keep them alive
            future.release()
        self._running -= 1
        out = self._count_bytes_out()
        if self._since is not None:
            self.traffic.sent += max(0, out - self._since)
        # while no task is under way, bytes sent are not counted
        self._since = out if self._running else None

    def _count_bytes_out(self) -> int:
        comm = self.client.scheduler_comm
        return 0 if comm is None else comm.byte_count

    def _find_error(self, future: Future, result: Any) -> BaseException | None:
        if isinstance(result, Failed):
            return result.error()
        if isinstance(result, CancelledError) or future.status == "cancelled":
            return self._explain_loss()
        if future.status != "error":
            return None
        kind, error, _ = result
        name = kind.__name__
        if name == "KilledWorker":
            sentence = (
                f"Workers died repeatedly on the same partition ({error}); they most likely "
                "ran out of memory, so give them more or make the partitions smaller."
            )
        elif isinstance(error, ModuleNotFoundError):
            sentence = (
                f"The workers lack a package ({error}); install decoct, and what your model "
                "imports, on every worker."
            )
        else:
            sentence = f"A partition could not be computed on the cluster ({name}: {error})."
        wrong = RowsError(sentence)
        wrong.__cause__ = error
        return wrong

    def _explain_loss(self) -> RowsError:
        if self.client.status == "running":
            return RowsError(
                "The work, or data that it needs, was cancelled on the cluster; run it again."
            )
        return RowsError(
            "The Dask scheduler stopped during the work; start the cluster again, and "
            "run the same command (with a checkpoint it resumes from the last round)."
        )


def _connect(given: Any) -> Client:
    # an unclosed client, collected while another one opens, would wait for it forever
    gc.collect()
    for _ in range(ATTEMPTS - 1):
        try:
            return Client(given, set_as_default=False, timeout=PATIENCE)
        except AssertionError:
            continue
    return Client(given, set_as_default=False, timeout=PATIENCE)
