"""Campbell & Broderick (2019), Figure 7: importance sampling, uniform coresets, random subsets.

    python -m experiments.hilbert.figure_7 [--quick] [--trials T] [--seed SEED] [--output FOLDER]

Hilbert importance sampling (IS-F, solid), uniform coresets (Unif, dashed; logistic regression only)
and uniformly random subsampling (Rand, dotted): both errors against time, a row of panels for each
family of models. Runs that runs.csv lacks are done first.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments.hilbert import pictures, runs

METHODS = ("IS-F", "Unif", "Rand")


def main(arguments: Sequence[str] | None = None) -> None:
    options = runs.parser(__doc__).parse_args(arguments)
    pictures.comparison(
        options, 7, METHODS, "Importance sampling, uniform coresets and random subsets"
    )


if __name__ == "__main__":
    main()
