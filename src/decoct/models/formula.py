"""Regression on raw columns through a formula such as ``late ~ temp + C(origin)``.

formulaic parses the formula and lays out the columns. What depends on the data (the levels of the
categories, the constants of ``center``, ``scale`` and the standardisation) comes from the full
data, in streamed passes, and is then frozen in a `Design`: a coreset never changes it.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import numpy as np
import pandas as pd
from formulaic import Formula, ModelSpec, SimpleFormula
from formulaic.parser.types import Factor as FormulaicFactor
from formulaic.parser.types import Term as FormulaicTerm
from formulaic.transforms import TRANSFORMS
from jaxtyping import Array, Float

from decoct.data.arrays import ArrayRows
from decoct.data.base import Chunk, Rows
from decoct.errors import ModelError, RequestError, RowsError
from decoct.models.base import AbstractModel, EncodedRows, Params, RawRows
from decoct.models.design import (
    STATEFUL,
    Design,
    Expression,
    LevelFactor,
    NumberFactor,
    State,
    Term,
    compile_expression,
    raw_column,
)
from decoct.models.validation import row_number

MAX_LEVELS = 1000
"""A category with more levels is refused: it is an identifier, and the design is dense."""

SAMPLE = 8
