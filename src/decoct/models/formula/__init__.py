"""Regressions on the columns of a table, from a formula."""

from decoct.models.formula.model import FormulaModel, from_formula

__all__ = ["FormulaModel", "from_formula"]
