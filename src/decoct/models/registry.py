"""From the description of a model in a coreset file back to the model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from decoct.errors import CoresetFileError, ModelError
from decoct.models.base import OF_FUNCTIONS, AbstractModel
from decoct.models.gaussian import GaussianMean
from decoct.models.linear import LinearRegression
from decoct.models.logistic import LogisticRegression
from decoct.models.poisson import PoissonRegression
from decoct.models.student_t import StudentTRegression

KINDS: dict[str, Callable[..., AbstractModel]] = {
    model.kind: model
    for model in (
        GaussianMean,
        LinearRegression,
        LogisticRegression,
        PoissonRegression,
        StudentTRegression,
    )
}
"""Kind -> what rebuilds the model from the other entries of its ``to_dict()``, as keywords."""


LATER = {"vmf_mixture": ("decoct.mixture.vmf_mixture", "VonMisesFisherMixture")}
"""Kinds of models that live above this package: kind -> module and name."""


def _model_of(kind: str) -> Callable[..., AbstractModel]:
    if kind in KINDS:
        return KINDS[kind]
    module, name = LATER[kind]
    return getattr(importlib.import_module(module), name)


def from_dict(spec: Mapping[str, Any]) -> AbstractModel:
    """Rebuild a model from its ``to_dict()``.

    Parameters
    ----------
    spec
        ``{"kind": ..., hyper-parameter: value, ...}``, straight from JSON.

    Raises
    ------
    CoresetFileError
        The kind is unknown or a custom model's, or the hyper-parameters do not fit it.
    ModelError
        A formula holds an expression that it may not have.
    """
    kind = spec.get("kind")
    if kind == "formula":
        # only here: it loads formulaic
        from decoct.models.formula import formula_from_dict

        return formula_from_dict(spec)
    if kind in OF_FUNCTIONS:
        raise CoresetFileError(
            f"The coreset was built with the {kind} model '{spec.get('name')}', "
            "whose functions a file cannot hold; give the model again."
        )
    if not isinstance(kind, str) or kind not in (*KINDS, *LATER):
        raise CoresetFileError(
            f"The file's model is of the unknown kind {kind!r}; it may come from a newer decoct. "
            f"Known kinds: {', '.join((*KINDS, *LATER, 'formula'))}."
        )
    try:
        return _model_of(kind)(**{name: value for name, value in spec.items() if name != "kind"})
    except (TypeError, ModelError) as error:
        raise CoresetFileError(
            f"The file's description of a {kind} model cannot be used: {error}"
        ) from error
