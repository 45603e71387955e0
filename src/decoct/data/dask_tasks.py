"""What runs on the workers: evaluating chunks where their rows are, and adding up the results.

Chunks are cut at multiples of their size in *global* row numbers, whatever the partitions. Every
chunk therefore has the shape and the bits it has in one process, and so has its result.
"""

from __future__ import annotations

import functools
import pickle
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import jax
import numpy as np
from dask.delayed import delayed
from dask.sizeof import sizeof

from decoct.data.base import Chunk, Columns
from decoct.errors import DecoctError
from decoct.runtime.resources import keep_buffers, use_compilation_cache


def call(function: Callable[..., Any], *args: Any) -> Any:
    """Return the delayed call of a function of this package, or its failure as a value."""
    name = f"{function.__name__}-{uuid.uuid4().hex}"
    return delayed(guarded, pure=False)(function, *args, dask_key_name=name)


@dataclass(frozen=True)
class Failed:
    """An error as a value: it is sent like any result, and the workers log nothing."""

    packed: bytes

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        if not isinstance(error, DecoctError):  # a bug in the user's function: say where
            error.add_note("On a worker:\n" + "".join(traceback.format_exception(error)))
        try:
            packed = cloudpickle.dumps(error)
            pickle.loads(packed)
        except Exception:
            packed = cloudpickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return cls(packed)

    def error(self) -> BaseException:
        return pickle.loads(self.packed)


def guarded(function: Callable[..., Any], *args: Any) -> Any:
    """Return the first failure among the arguments; turn what is raised into one."""
    for arg in args:
        if isinstance(arg, Failed):
            return arg
    try:
        return function(*args)
    except BaseException as error:  # a KeyboardInterrupt would end the worker
        return Failed.of(error)


def pack(value: Any) -> bytes:
    """Return a value as bytes: functions of a notebook, models, typed JAX keys and all."""
    return cloudpickle.dumps(value)


def unpack(packed: bytes) -> Any:
    """Return a value from its bytes; float64 arrays of JAX stay so."""
    with jax.enable_x64(True):
        return pickle.loads(packed)


@functools.lru_cache(maxsize=32)
def _unpack_once(packed: bytes) -> Any:
    """Unpack a function once per worker: the same object again is not compiled again."""
    use_compilation_cache()
    keep_buffers()
    return unpack(packed)


def count_bytes(result: Any) -> int:
    """Return the size of an answer."""
    if isinstance(result, bytes):
        return len(result)
    if isinstance(result, dict):
        return sum(v.nbytes if v.dtype != object else sizeof(v) for v in result.values())
    return sizeof(result)


def evaluate(
    packed: bytes,
    draws: bytes,
    is_folded: bool,
    columns: Columns,
    begin: int,
    end: int,
    start: int,
    size: int,
) -> Any:
    """Return ``fn`` of the chunks of ``size`` rows in rows ``begin:end`` of a partition.

    Their results are reduced here if they are folded; else they come back in a list. ``packed`` and
    ``draws`` are (fn, reduce) and the broadcast; ``start`` is the global number of row ``begin``.
    """
    fn, reduce = _unpack_once(packed)
    broadcast = _unpack_once(draws)
    whole = Chunk(start, {name: values[begin:end] for name, values in columns.items()})
    results = []
    for a in range(0, end - begin, size):
        result = fn(whole.piece(a, a + size), *broadcast)
        results = [reduce(results[0], result)] if is_folded and results else [*results, result]
    return results[0] if is_folded else pack(results)


def merge(packed: bytes, *parts: Any) -> Any:
    """Return neighbouring partial results as one."""
    _, reduce = _unpack_once(packed)
    return functools.reduce(reduce, parts)


def mark_done(part: Any) -> None:
    """Return nothing; progress is counted by the tasks of this function that are done."""


def cut_piece(columns: Columns, begin: int, end: int) -> Columns:
    """Return some consecutive rows of a partition; copies, so that they do not keep it alive."""
    return {name: values[begin:end].copy() for name, values in columns.items()}


def pick(columns: Columns, rows: np.ndarray) -> Columns:
    """Return some rows of a partition."""
    return {name: values[rows] for name, values in columns.items()}


def join(*pieces: Columns) -> Columns:
    """Return consecutive pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([one[name] for one in pieces]) for name in pieces[0]}
