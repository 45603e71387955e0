"""A Gaussian site: a quadratic that stands for the log-likelihood of many rows.

    s(θ) = c + hᵀ(θ − μ) − ½ (θ − μ)ᵀ A (θ − μ),     A ⪰ 0

The term is that of expectation propagation (Minka 2001): an unnormalised Gaussian factor in place
of likelihood terms. A coreset with a site has log π_w = log π₀ + s + Σ w_m f_m + constant.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from decoct.errors import CoresetFileError

REMEDY = "Restore a copy of the file, or build the coreset again."


class GaussianSite(eqx.Module):
    """A quadratic in the model's flat unconstrained parameters θ, in nats.

    Sites of parts of a table add: ``site + other`` is the site of both.

    Attributes
    ----------
    centre : (d,)
        μ, where the log-likelihood was expanded.
    linear : (d,)
        h, the gradient of the site at μ.
    precision : (d, d)
        A, minus the Hessian; symmetric, no eigenvalue below 0.
    constant
        c, the value of the site at μ.

    Examples
    --------
    >>> import numpy as np
    >>> site = GaussianSite(np.zeros(1), np.ones(1), 2.0 * np.eye(1), 0.5)
    >>> float(site.log_density(np.array([1.0])))
    0.5
    >>> (site + site.moved_to(np.ones(1))).linear
    array([2.])
    """

    centre: Float[np.ndarray, " d"]
    linear: Float[np.ndarray, " d"]
    precision: Float[np.ndarray, "d d"]
    # an array: a Python number would be part of the program, which is then compiled again for each
    constant: Float[np.ndarray, ""] = eqx.field(converter=lambda c: np.asarray(c, dtype=np.float64))

    @property
    def dim(self) -> int:
        """d, the number of parameters."""
        return len(self.centre)

    def log_density(self, z: Float[Any, "... d"]) -> Float[Any, "..."]:
        """Return s at z, or at each of several; NumPy arrays and JAX tracers alike."""
        delta = z - self.centre
        return (
            self.constant + delta @ self.linear - 0.5 * ((delta @ self.precision) * delta).sum(-1)
        )

    def moved_to(self, centre: Float[np.ndarray, " d"]) -> GaussianSite:
        """Return the same quadratic, written about another point."""
        centre = np.asarray(centre, dtype=np.float64)
        linear = self.linear - self.precision @ (centre - self.centre)
        return GaussianSite(centre, linear, self.precision, float(self.log_density(centre)))

    def __add__(self, other: GaussianSite) -> GaussianSite:
        moved = other.moved_to(self.centre)
        return GaussianSite(
            self.centre,
            self.linear + moved.linear,
            self.precision + moved.precision,
            self.constant + moved.constant,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values: arrays as base64 of little-endian float64, row by row.

        Of the precision, what is above the diagonal is 0, and it is compressed by zlib: readers
        of Parquet refuse more than 100 MB of metadata.
        """
        lower = np.tril(self.precision).astype("<f8")
        return {
            "centre": _encoded(self.centre),
            "linear": _encoded(self.linear),
            "precision": base64.b64encode(zlib.compress(lower.tobytes(), 1)).decode(),
            "constant": float(self.constant),
        }

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> GaussianSite:
        """Rebuild a site from its ``to_dict()``.

        Raises
        ------
        CoresetFileError
            The numbers are not those of a Gaussian.
        """
        centre, linear = (_decoded(spec[name]) for name in ("centre", "linear"))
        d, constant = len(centre), float(spec["constant"])
        compressed = base64.b64decode(spec["precision"], validate=True)
        # no more numbers than belong there, whatever the file has
        lower = zlib.decompressobj().decompress(compressed, 8 * d * d + 8)
        lower = np.frombuffer(lower, dtype="<f8")
        numbers = np.concatenate([centre, linear, lower, [constant]])
        if (len(linear), len(lower)) == (d, d * d) and np.isfinite(numbers).all():
            lower = lower.reshape(d, d)
            precision = np.tril(lower) + np.tril(lower, -1).T
            if _is_semidefinite(precision):
                return cls(centre, linear, precision, constant)
        raise CoresetFileError(f"The file's site has numbers that no Gaussian has. {REMEDY}")


def _is_semidefinite(precision: Float[np.ndarray, "d d"]) -> bool:
    """Return whether no eigenvalue is below 0, but for rounding."""
    rounding = 1e-8 * np.abs(precision).max(initial=1e-300)
    try:
        np.linalg.cholesky(precision + rounding * np.eye(len(precision)))
    except np.linalg.LinAlgError:
        return False
    return True


def _encoded(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode()


def _decoded(text: str) -> Float[np.ndarray, " n"]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)
