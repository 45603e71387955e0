"""Campbell & Broderick (2019), Figure 8: importance sampling in two norms.

    python -m experiments.hilbert.figure_8 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

The weighted 2-norm (IS-2, solid; Eq. 5.3) and the weighted Fisher information norm (IS-F, dashed;
Eq. 5.1): both errors against time, a row of panels for each family of models. Runs that
runs.csv lacks are done first.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.hilbert import pictures, runs

METHODS = ("IS-2", "IS-F")


def main(arguments: Sequence[str] | None = None) -> None:
    options = runs.parser(__doc__).parse_args(arguments)
    pictures.comparison(options, 8, METHODS, "Importance sampling: weighted 2-norm and Fisher norm")


if __name__ == "__main__":
    main()
