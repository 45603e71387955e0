"""Loading: a file to a coreset, and a description to a model."""

from __future__ import annotations

import importlib
import json
import os
import reprlib
from collections.abc import Mapping
from typing import Any

from decoct.coreset import Coreset, describe_by
from decoct.errors import CoresetFileError, DecoctError, RequestError
from decoct.formats.coreset_file import naming_damage, read_coreset
from decoct.models.base import AbstractModel, is_of_functions
from decoct.models.fingerprint import find_difference

KINDS = {
    "dp_gaussian_mixture": ("mixture.building", "coreset_from_file"),
    "formula": ("models.formula.model", "FormulaModel"),
    "gaussian_mean": ("models.gaussian", "GaussianMean"),
    "linear_regression": ("models.linear", "LinearRegression"),
    "logistic_regression": ("models.logistic", "LogisticRegression"),
    "poisson_regression": ("models.poisson", "PoissonRegression"),
    "student_t_regression": ("models.student_t", "StudentTRegression"),
    "vmf_mixture": ("mixture.vmf.vmf_mixture", "VonMisesFisherMixture"),
}
"""Kind in a file -> module and name of the class that rebuilds what it describes."""


def load(path: str | os.PathLike[str], model: AbstractModel | None = None) -> Coreset:
    """Read a coreset that `Coreset.save` wrote.

    Parameters
    ----------
    path
        The file.
    model
        Needed when the coreset was built for a `decoct.Model` of your own functions, which a
        file cannot store. Its likelihood must have the same values on the kept rows; the prior may
        be another one on the same support.

    Returns
    -------
    Coreset
        The coreset as it was saved; a `MixtureCoreset` if it is one of a mixture.

    Raises
    ------
    CoresetFileError
        The file is missing, damaged, not a coreset, from a newer format, or needs ``model``; or
        ``model`` has another likelihood.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> rows = {"x": np.random.default_rng(0).normal(size=(500, 2))}
    >>> model = decoct.models.GaussianMean(np.eye(2))
    >>> import tempfile
    >>> coreset = decoct.build(model, rows, size=5)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     coreset.save(f"{folder}/c.parquet")
    ...     again = decoct.load(f"{folder}/c.parquet")
    >>> bool((again.weights == coreset.weights).all())
    True
    """
    if not isinstance(path, (str, os.PathLike)):
        raise RequestError(f"path must be a path, not {path!r}.")
    stored = read_coreset(path)
    with naming_damage(path):
        spec = stored.description["model"]
        if model is None and is_of_functions(spec):
            raise CoresetFileError(
                f"{path} was built for a model of your own functions ({spec.get('name')}), which "
                "the file cannot store; pass it: decoct.load(path, model=...)."
            )
        if model is None and "fitted" in stored.description:
            return _class_of(spec)(stored)
        coreset = describe_by(*stored, model_from_dict(spec) if model is None else model)
    if model is not None:
        _check_same_model(coreset, stored.description, path)
    return coreset


def _check_same_model(coreset: Coreset, description: dict[str, Any], path: object) -> None:
    """Refuse a model that has another likelihood than the one before."""
    values = description.get("values")
    if values is None:
        as_stored = json.loads(json.dumps(coreset.model.to_dict()))
        given, kept = map(_likelihood_of, (as_stored, description["model"]))
        if given != kept:
            raise CoresetFileError(
                f"The given model's likelihood is not the one that {path} was built for: "
                f"{reprlib.repr(given)}, not {reprlib.repr(kept)}. Only the prior may differ."
            )
        return
    try:
        likelihood = {name: values[name] for name in ("at", "log_likelihood")}
        encoded = coreset.model.encode(coreset.rows, coreset.indices)
        differs = find_difference(likelihood, coreset.model, encoded)
    except (DecoctError, KeyError, TypeError, ValueError, IndexError) as error:
        raise CoresetFileError(
            f"The given model cannot be evaluated on the kept rows of {path} "
            f"({type(error).__name__}: {error}); pass the one the coreset was built for."
        ) from error
    if differs is not None:
        raise CoresetFileError(
            f"The given model's likelihood is not the one that {path} was built for: {differs}. "
            "Pass a model with the same functions and constants; only its prior may differ, on the "
            "same support."
        )


def _likelihood_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return what describes a model without its prior."""
    return {
        name: _likelihood_of(value) if isinstance(value, Mapping) else value
        for name, value in spec.items()
        if not name.startswith("prior")
    }


def model_from_dict(spec: Mapping[str, Any]) -> AbstractModel:
    """Rebuild a model from its ``to_dict()``, straight from JSON."""
    return _class_of(spec).from_dict(spec)


def _class_of(spec: Mapping[str, Any]) -> Any:
    kind = spec.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise CoresetFileError(
            f"The file's model is of the unknown kind {kind!r}; it may come from a newer decoct. "
            f"Known kinds: {', '.join(KINDS)}."
        )
    module, name = KINDS[kind]
    return getattr(importlib.import_module(f"decoct.{module}"), name)
