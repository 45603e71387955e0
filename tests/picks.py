"""A progress bar that writes down the iterations of a solver."""

from decoct.runtime.progress import ProgressBar


class Picks(ProgressBar):
    def __init__(self):
        super().__init__(False)
        self.done = []

    def advance(self, units, unit=None):
        if unit == "picks":
            self.done.append(units)
        super().advance(units, unit)
