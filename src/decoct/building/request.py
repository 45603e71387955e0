"""The request of a build, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from decoct.constructions.base import Construction
from decoct.constructions.iterated_hilbert.iterated_hilbert import IteratedHilbert
from decoct.data.base import fingerprint as table_fingerprint
from decoct.data.encoded import EncodedRows
from decoct.errors import RequestError
from decoct.models.base import AbstractModel
from decoct.report import described
from decoct.runtime.checks import checked_whole, is_positive
from decoct.runtime.randomness import checked_seed
from decoct.samplers.automatic import Automatic
from decoct.samplers.base import Sampler, require_sampler

DEFAULT_KL = 0.01
"""KL in nats to reach where neither a size nor a KL is asked for."""

LARGEST_KL_SIZE = 1000
"""Most rows a ``kl`` build keeps unless the method's ``max_size`` says otherwise."""


def checked_sizes(sizes: Any) -> tuple[int, ...]:
    """Return the sizes of several coresets in ascending order, without repeats."""
    if np.ndim(sizes) != 1 or not len(sizes):
        raise RequestError(
            f"sizes must be a list of at least one size, such as [50, 100], not {sizes!r}."
        )
    return tuple(sorted({checked_whole("sizes", one, 0) for one in sizes}))


@dataclass(frozen=True)
class Request:
    """The request; see `build` for the parameters."""

    size: int | None
    kl: float | None
    method: Construction
    sampler: Sampler
    seed: int
    sizes: tuple[int, ...]

    @classmethod
    def checked(cls, *, size, kl, method, sampler, seed) -> Request:
        """Refuse a contradictory request."""
        method = IteratedHilbert() if method is None else method
        sampler = Automatic() if sampler is None else sampler
        name, certifies = type(method).__name__, isinstance(method, IteratedHilbert)
        if size is not None and kl is not None:
            raise RequestError("Give either size= (rows to keep) or kl= (nats to reach), not both.")
        if size is not None:
            size = checked_whole("size", size, 0)
        elif kl is not None:
            if not is_positive(kl):
                raise RequestError(f"kl must be a positive number of nats, not {kl!r}.")
            kl = float(kl)
        elif certifies:
            kl = DEFAULT_KL
        else:
            raise RequestError(f"{name} takes size=, the rows to keep; give it.")
        if isinstance(method, type) or not hasattr(method, "step"):
            raise RequestError(
                f"method must be a construction such as IteratedHilbert(), not {method!r}."
            )
        require_sampler(sampler)
        if size == 0 and not getattr(method, "site", False):
            raise RequestError(
                f"size is 0, but {name} has no site to stand for the rows; ask for at least 1 row."
            )
        if kl is not None and not certifies:
            raise RequestError(
                f"kl= needs a construction that certifies itself (IteratedHilbert); {name} takes "
                "size=."
            )
        return cls(size, kl, method, sampler, checked_seed(seed), (size or 0,))

    def sizes_for(self, n_rows: int) -> tuple[int, ...]:
        """Return the sizes to fill for a table of N rows."""
        if self.kl is not None:
            most = getattr(self.method, "max_size", None) or LARGEST_KL_SIZE
            return (min(n_rows, most),)
        if self.sizes[-1] > n_rows:
            raise RequestError(
                f"size is {self.sizes[-1]} but the table has {n_rows} rows; ask for at most that."
            )
        return self.sizes

    def checkpoint_key(self, model: AbstractModel, rows: EncodedRows) -> dict[str, Any]:
        """Return what a checkpoint and a build that resumes from it share, in one pass."""
        from decoct.models.fingerprint import EXAMPLES, fingerprint

        examples = rows.take(np.arange(min(EXAMPLES, rows.n_rows)))
        return {
            "size": self.size,
            "kl": self.kl,
            "seed": self.seed,
            "method": repr(described(self.method)),
            "sampler": repr(described(self.sampler)),
            "model": repr(model.to_dict()),
            "n_rows": rows.n_rows,
            "columns": sorted(rows.columns),
            "table": table_fingerprint(rows.raw, model.columns or None),
            "values": fingerprint(model, examples),
        }
