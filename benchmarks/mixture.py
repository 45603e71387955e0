"""What a Gaussian mixture's iteration costs: ``python -m benchmarks.mixture``.

`DPGaussianMixture` beside scikit-learn's `BayesianGaussianMixture` in one run, one thread each:
Dirichlet process, full covariances, the same rows, priors and k-means start, and ``reg_covar`` 0,
which there is added to every covariance and here to the prior. CPU seconds of an iteration (the
difference between fits of 1 and of several iterations, the shortest of a few), and the evidence
bound of both after the same number of iterations, the last one ours; its last stick is 1, which
scikit-learn's model leaves free. Peak memory at the size of the protein homology set, by start, a
process each. And our fit of a coreset beside our fit of all rows, as many iterations each, with the
choice of rows and the k-means start; two columns are where an iteration has the least to do beside
its own cost.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.tables import RESULTS, write_csv

THREADS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}

MEMORY_STARTS = ("k-means++", "kmeans", "random")


def groups(N: int, D: int, seed: int = 0) -> np.ndarray:
    """Return rows of twenty groups, in the order in which `DPGaussianMixture` fits them."""
    from decoct.mixture.initialization import merge_equal_rows

    rng = np.random.default_rng(seed)
    centres = 3.0 * rng.normal(size=(20, D))
    x = rng.normal(size=(N, D)) + centres[rng.integers(20, size=N)]
    return merge_equal_rows(x, np.ones(N))[0]


def compare_once(N: int, D: int, T: int, iterations: int, times: int) -> dict[str, float]:
    """Time both in this process, turn by turn."""
    from sklearn.mixture import BayesianGaussianMixture

    from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture

    warnings.simplefilter("ignore")
    x = groups(N, D)
    how = {"n_components": T, "random_state": 0, "tol": 0.0, "reg_covar": 0.0, "max_iter": 1}
    how |= {"warm_start": True}
    ours, peer = DPGaussianMixture(**how).fit(x), BayesianGaussianMixture(**how).fit(x)
    seconds: dict[str, list[float]] = {"ours 1": [], "peer 1": [], "ours": [], "peer": []}
    for _ in range(times):
        for name, mixture in (("ours", ours), ("peer", peer)):
            seconds[f"{name} 1"].append(timed(lambda m=mixture: m.set_params(max_iter=1).fit(x)))
            seconds[name].append(
                timed(lambda m=mixture: m.set_params(max_iter=1 + iterations).fit(x))
            )
    best = {name: min(values) for name, values in seconds.items()}
    return {
        "ours_s": (best["ours"] - best["ours 1"]) / iterations,
        "peer_s": (best["peer"] - best["peer 1"]) / iterations,
        "iterations": 2 + times * (2 + iterations),
        **bounds(ours, peer, x),
    }


def bounds(ours: Any, peer: Any, x: np.ndarray) -> dict[str, float]:
    """Return the evidence bound one iteration of ours after both posteriors."""
    from decoct.mixture.cavi import Mixture, ascend
    from decoct.mixture.e_step import make_table
    from decoct.mixture.estimator_input import Moments
    from decoct.mixture.normal_wishart import NormalWishart

    weights = np.ones(len(x))
    rows, priors = (
        make_table(x, weights),
        ours._set_priors(x.shape[1], lambda: Moments.of(x, weights)),
    )
    scatters = peer.covariances_ * peer.degrees_of_freedom_[:, None, None]
    components = NormalWishart(
        peer.means_, peer.mean_precision_, np.linalg.cholesky(scatters), peer.degrees_of_freedom_
    )
    ends = {
        "ours_bound": ours._get_posterior(),
        "peer_bound": Mixture(np.stack(peer.weight_concentration_), components),
    }
    return {k: ascend(rows, priors, q, max_iterations=1).bounds[0] for k, q in ends.items()}


def coreset_once(N: int, D: int, T: int, M: int, iterations: int, times: int) -> dict[str, float]:
    """Time a fit of M draws and one of all rows, turn by turn, compiled before."""
    from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture

    warnings.simplefilter("ignore")
    x = groups(N, D)
    how = {"n_components": T, "random_state": 0, "tol": 0.0}
    seconds: dict[int | None, list[float]] = {None: [], M: []}
    for most in (2, *([iterations] * times)):
        for size, found in seconds.items():
            mixture = DPGaussianMixture(**how, max_iter=most, coreset_size=size)
            found.append(timed(lambda m=mixture: m.fit(x)))
    return {"full_s": min(seconds[None][1:]), "coreset_s": min(seconds[M][1:])}


def memory_once(N: int, D: int, T: int, start: str) -> dict[str, float]:
    """Fit two iterations and report this process's peak memory."""
    import resource

    from decoct.mixture.dp_gaussian_mixture import DPGaussianMixture

    warnings.simplefilter("ignore")
    x = groups(N, D)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    DPGaussianMixture(n_components=T, max_iter=2, init_params=start).fit(x)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"peak_gb": peak * 1024 / 1e9, "before_gb": before * 1024 / 1e9}


def timed(fn: Callable[[], Any]) -> float:
    """Return CPU seconds, which others on the machine change less than wall seconds."""
    started = time.process_time()
    fn()
    return time.process_time() - started


def in_process(*arguments: str) -> dict[str, float]:
    """Run a part of this module in a process of its own, with one thread."""
    command = [sys.executable, "-m", "benchmarks.mixture", *arguments]
    environment = {**os.environ, **THREADS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--dims", type=int, nargs="+", default=[10, 74])
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=4, help="timed together")
    parser.add_argument("--coreset", type=int, default=2000, help="M of the coreset fit")
    parser.add_argument("--coreset-dims", type=int, nargs="+", default=[2, 10, 74])
    parser.add_argument(
        "--fit-iterations", type=int, default=100, help="of full and coreset fit; a fifth if D > 20"
    )
    parser.add_argument("--times", type=int, default=3, help="turns, of which the shortest counts")
    parser.add_argument("--start", choices=MEMORY_STARTS, help=argparse.SUPPRESS)
    parser.add_argument("--part", choices=("compare", "coreset", "memory"), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULTS / "mixture.csv")
    options = parser.parse_args()
    if options.part == "compare":
        once = compare_once(
            options.rows, options.dims[0], options.components, options.iterations, options.times
        )
        print(json.dumps(once))
    elif options.part == "coreset":
        once = coreset_once(
            options.rows, options.dims[0], options.components, options.coreset,
            options.fit_iterations, options.times,
        )  # fmt: skip
        print(json.dumps(once))
    elif options.part == "memory":
        once = memory_once(options.rows, options.dims[0], options.components, options.start)
        print(json.dumps(once))
    else:
        report(options)


def report(options: argparse.Namespace) -> None:
    figures: dict[str, float] = {}
    for D in options.dims:
        found = in_process(
            "--part=compare",
            f"--rows={options.rows}",
            f"--components={options.components}",
            f"--iterations={options.iterations}",
            f"--times={options.times}",
            "--dims",
            str(D),
        )
        name = f"D={D}, T={options.components}, N={options.rows:,}"
        figures[f"{name}: iteration, decoct, s"] = found["ours_s"]
        figures[f"{name}: iteration, scikit-learn / decoct"] = found["peer_s"] / found["ours_s"]
        gain = found["ours_bound"] - found["peer_bound"]
        figures[f"{name}: bound less scikit-learn's, {found['iterations']} iterations, nats"] = gain
    for D in options.coreset_dims:
        many = D > 20
        found = in_process(
            "--part=coreset",
            f"--rows={options.rows}",
            f"--components={options.components}",
            f"--coreset={options.coreset}",
            f"--fit-iterations={options.fit_iterations // (5 if many else 1)}",
            "--times=1" if many else f"--times={options.times}",
            "--dims",
            str(D),
        )
        ratio = found["full_s"] / found["coreset_s"]
        name = f"D={D}, T={options.components}, N={options.rows:,}, M={options.coreset:,}"
        figures[f"{name}: full fit, s"] = found["full_s"]
        figures[f"{name}: full / coreset fit"] = ratio
        figures[f"{name}: the same over N/M"] = ratio * options.coreset / options.rows
    for start in MEMORY_STARTS:
        memory = in_process(
            "--part=memory", "--rows=145751", "--components=100", f"--start={start}", "--dims", "74"
        )
        name = f"D=74, T=100, N=145,751, start {start}"
        figures[f"{name}: peak memory of a fit, GB"] = memory["peak_gb"]
        figures[f"{name}: the same process before the fit, GB"] = memory["before_gb"]
    table = Table(title="Cost of a mixture's iteration, one thread")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:.3g}")
    Console().print(table)
    write_csv(options.output, [{"figure": k, "value": v} for k, v in figures.items()])


if __name__ == "__main__":
    main()
