"""The errors a user can cause. Each message says what is wrong, where, and what to do."""

from typing import Self


class DecoctError(ValueError):
    """Base of every error that the user's input can cause; the command line exits with code 2.

    Examples
    --------
    >>> import decoct
    >>> try:
    ...     decoct.rows(3)
    ... except decoct.DecoctError as error:
    ...     print(type(error).__name__)
    RowsError
    """


class ShortBuildWarning(UserWarning):
    """A build ended without what was asked for; ``coreset.report.status`` says how.

    Examples
    --------
    >>> import decoct, warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", decoct.ShortBuildWarning)  # short builds raise
    """


class RowsError(DecoctError):
    """The table cannot be used: a missing file or column, a bad value in a named row.

    Examples
    --------
    >>> import decoct
    >>> try:
    ...     decoct.rows({"x": [1.0, 2.0], "y": [0]})
    ... except decoct.RowsError as error:
    ...     print(error)
    The columns differ in length ('x' 2, 'y' 1); make them equally long.
    """


class ModelError(DecoctError):
    """The model cannot be used: a wrong shape, a NaN potential, a log prior of minus infinity.

    Examples
    --------
    >>> import decoct
    >>> try:
    ...     decoct.models.LogisticRegression(prior_scale=-1.0)
    ... except decoct.ModelError as error:
    ...     print(error)
    prior_scale must be a positive finite number or one per coefficient, not -1.0.
    """


class RowError(DecoctError):
    """One row cannot be used; `str` composes the message from the attributes.

    Attributes
    ----------
    row
        The number of the row in the table.
    file
        The file that has the row, if the table has several.
    row_in_file
        The number of the row in that file, from 0.

    Examples
    --------
    >>> import decoct, numpy as np
    >>> try:
    ...     decoct.laplace(decoct.models.GaussianMean(np.eye(1)), {"x": [1.0, np.nan]})
    ... except decoct.errors.RowError as error:
    ...     print(error.row, error.place)
    1 row 1
    """

    row: int
    file: str | None = None
    row_in_file: int | None = None

    def at(self, row: int, file: str | None = None, row_in_file: int | None = None) -> Self:
        """Set where the row is, and return this error."""
        self.row, self.file, self.row_in_file = row, file, row_in_file
        return self

    @property
    def place(self) -> str:
        """The row by name: "row 14 (row 4 of b.parquet)"."""
        inside = "" if self.file is None else f" (row {self.row_in_file} of {self.file})"
        return f"row {self.row}{inside}"


class BadValueError(RowError, RowsError):
    """A row has a value that cannot be used: "Column 'x' has NaN in row 3; drop such rows."

    Parameters
    ----------
    problem
        The message up to the row, without the column: "has NaN".
    row
        The number of the row in the table.
    remedy
        The rest of the message: "; drop such rows."
    column
        The column that has the value; None if ``problem`` begins with something else.

    Examples
    --------
    >>> from decoct.errors import BadValueError
    >>> print(BadValueError("has NaN", 3, "; drop such rows.", "x"))
    Column 'x' has NaN in row 3; drop such rows.
    """

    def __init__(self, problem: str, row: int, remedy: str, column: str | None = None) -> None:
        super().__init__(problem, row, remedy, column)
        self.problem, self.row, self.remedy, self.column = problem, row, remedy, column

    def __str__(self) -> str:
        subject = "" if self.column is None else f"Column '{self.column}' "
        return f"{subject}{self.problem} in {self.place}{self.remedy}"


class PotentialError(RowError, ModelError):
    """A potential is not finite.

    Parameters
    ----------
    row
        The number of the row in the table.
    value
        What the potential is: "nan".
    draw
        Where it was evaluated: "draw 3".

    Examples
    --------
    >>> from decoct.errors import PotentialError
    >>> PotentialError(7, "nan", "draw 3").place
    'row 7'
    """

    def __init__(self, row: int, value: str, draw: str) -> None:
        super().__init__(row, value, draw)
        self.row, self.value, self.draw = row, value, draw

    def __str__(self) -> str:
        return (
            f"The log-likelihood of {self.place} is {self.value} at {self.draw}; "
            "fix the model or drop the row (decoct does not clip)."
        )


class SamplerError(ModelError):
    """A sampler returned draws that cannot be used: too few, or not finite.

    Examples
    --------
    >>> from decoct.errors import ModelError, SamplerError
    >>> issubclass(SamplerError, ModelError)
    True
    """


class RequestError(DecoctError):
    """An option cannot be used: size, kl, a path that cannot be written.

    Examples
    --------
    >>> import decoct
    >>> try:
    ...     decoct.build(decoct.models.LogisticRegression(), {"x": [0.0], "y": [1]}, size=-1)
    ... except decoct.RequestError as error:
    ...     print(error)
    size must be a whole number, at least 0, not -1.
    """


class CoresetFileError(DecoctError):
    """A coreset file is damaged or of another kind, or does not fit the given table or model.

    Examples
    --------
    >>> import decoct
    >>> try:
    ...     decoct.load("nowhere.parquet")
    ... except decoct.CoresetFileError as error:
    ...     print(error)
    There is no file nowhere.parquet.
    """
