"""Progress of a fit, printed as scikit-learn's mixtures print theirs."""

from __future__ import annotations

from time import perf_counter

import numpy as np

from decoct.mixture.cavi import Fit


class FitPrinter:
    """Prints the progress of one start."""

    def __init__(self, verbose: int, interval: int, number: int) -> None:
        self.verbose, self.interval = verbose, interval
        self.began = self.last = perf_counter()
        if verbose:
            print(f"Initialization {number}")

    def iteration(self, number: int, bound: float, rise: float) -> None:
        if not self.verbose or number % self.interval:
            return
        now = perf_counter()
        seconds = f"\t time lapse {now - self.last:.5f}s\t ll change {rise:.5f}"
        print(f"  Iteration {number}" + (seconds if self.verbose > 1 else ""))
        self.last = now

    def end(self, fit: Fit) -> None:
        if not self.verbose:
            return
        how = "converged" if fit.converged else "did not converge"
        bound = fit.bounds[-1] if fit.bounds else -np.inf
        seconds = f" time lapse {perf_counter() - self.began:.5f}s\t lower bound {bound:.5f}."
        print(f"Initialization {how}." + (seconds if self.verbose > 1 else ""))
