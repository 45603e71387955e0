"""The errors a user can cause. Each message says what is wrong, where, and what to do."""


class DecoctError(ValueError):
    """Base of every error that the user's input can cause; the command line exits with code 2."""


class ShortBuildWarning(UserWarning):
    """A build ended without what was asked for; ``coreset.report.status`` says how."""


class RowsError(DecoctError):
    """The table cannot be used: a missing file or column, a bad value in a named row."""


class ModelError(DecoctError):
    """The model cannot be used: a wrong shape, a NaN potential, a log prior of minus infinity."""


class PotentialError(ModelError):
    """A potential is not finite.

    Attributes
    ----------
    row
        The number that the message has: "The log-likelihood of row …".
    """

    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row

    def renumber(self, row: int) -> None:
        """Name the row by another number."""
        self.args = (str(self).replace(f"of row {self.row} ", f"of row {row} ", 1),)
        self.row = row


class SamplerError(ModelError):
    """A sampler returned draws that cannot be used: too few, or not finite."""


class RequestError(DecoctError):
    """An option cannot be honoured: size, kl, a path that cannot be written."""


class CoresetFileError(DecoctError):
    """A coreset file is corrupt, foreign, or does not belong to the table or model given."""
