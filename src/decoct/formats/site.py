"""A site as JSON-ready values, for the metadata of a coreset's file."""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from decoct.errors import CoresetFileError
from decoct.models.site import GaussianSite, ThirdOrder

REMEDY = "Restore a copy of the file, or build the coreset again."


def site_to_dict(site: GaussianSite) -> dict[str, Any]:
    """Return JSON-ready values: arrays as base64 of little-endian float64, row by row.

    Of the precision, what is above the diagonal is 0, and it is compressed by zlib: readers
    of Parquet refuse more than 100 MB of metadata.
    """
    lower = np.tril(site.precision).astype("<f8")
    spec = {
        "centre": _encode(site.centre),
        "linear": _encode(site.linear),
        "precision": base64.b64encode(zlib.compress(lower.tobytes(), 1)).decode(),
        "constant": float(site.constant),
    }
    if site.third_order is not None:
        third = site.third_order
        spec |= {name: _encode(part) for name, part in third.arrays().items()}
    return spec


def site_from_dict(spec: Mapping[str, Any]) -> GaussianSite:
    """Rebuild a site from what `site_to_dict` returned.

    Raises
    ------
    CoresetFileError
        The numbers are not those of a Gaussian.
    """
    centre, linear = (_decode(spec[name]) for name in ("centre", "linear"))
    d, constant = len(centre), float(spec["constant"])
    compressed = base64.b64decode(spec["precision"], validate=True)
    # no more numbers than belong there, whatever the file has
    lower = zlib.decompressobj().decompress(compressed, 8 * d * d + 8)
    lower = np.frombuffer(lower, dtype="<f8")
    third = None
    if "sizes" in spec:
        fields = [field.name for field in dataclasses.fields(ThirdOrder)]
        parts = {name: _decode(spec[name]) for name in fields if name in spec}
        for name in parts.keys() & {"effects", "partners"}:
            parts[name] = parts[name].astype(np.int64)
        third = ThirdOrder(**parts)
    numbers = np.concatenate([centre, linear, lower, [constant]])
    if (len(linear), len(lower)) == (d, d * d) and np.isfinite(numbers).all():
        lower = lower.reshape(d, d)
        precision = np.tril(lower) + np.tril(lower, -1).T
        if _is_semidefinite(precision) and (third is None or _belongs(third, d)):
            return GaussianSite(centre, linear, precision, constant, third)
    raise CoresetFileError(f"The file's site has numbers that no Gaussian has. {REMEDY}")


def _belongs(third: ThirdOrder, d: int) -> bool:
    """Return whether terms of third order are of d parameters."""
    parts = third.arrays()
    same = len(parts) in (3, 5) and len({len(part) for part in parts.values()}) == 1
    places = [parts[name] for name in parts.keys() & {"effects", "partners"}]
    inside = all(((one >= 0) & (one < d)).all() for one in places)
    finite = all(np.isfinite(part).all() for part in parts.values())
    return bool(same and inside and finite and (third.scales > 0.0).all())


def _is_semidefinite(precision: Float[np.ndarray, "d d"]) -> bool:
    """Return whether no eigenvalue is below 0, but for rounding."""
    rounding = 1e-8 * np.abs(precision).max(initial=1e-300)
    try:
        np.linalg.cholesky(precision + rounding * np.eye(len(precision)))
    except np.linalg.LinAlgError:
        return False
    return True


def _encode(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode()


def _decode(text: str) -> Float[np.ndarray, " n"]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f8").astype(np.float64)
