"""Poisson responses with a rate exp(η), evaluated without the logarithm of the rate.

    log p(y | η) = y η − exp(η) − log y!,   −∞ where y is negative,   0 where η = −∞ and y = 0.

The same numbers as PyMC's wherever exp(η) is neither 0 nor ∞ in float64 (|η| below 700 or so;
beyond, η is what was meant). PyMC's choices for a rate of 0, made for every row and draw, keep XLA
from turning exp into vector code. Here choices are made once a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pytensor.scalar.basic import Exp
from pytensor.tensor.basic import switch
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import eq, exp, gammaln, lt, maximum, minimum
from pytensor.tensor.random.basic import PoissonRV

from decoct.bridges.pymc_views import without_views

LARGEST = np.finfo(np.float64).max


def density(rv: Any, value: Any) -> Any:
    """Return the log density of a Poisson variable that was given exp(η), or None."""
    if rv.owner is None or not isinstance(rv.owner.op, PoissonRV):
        return None
    node = without_views(rv.owner.inputs[2].owner)
    if node is None or not isinstance(node.op, Elemwise):
        return None
    if not isinstance(node.op.scalar_op, Exp):
        return None
    linear: Any = node.inputs[0]
    possible: Any = switch(lt(value, 0), np.float64(-np.inf), np.float64(0.0))
    count: Any = switch(lt(value, 0), 0, value)
    # 0 (−∞) would be NaN
    most: Any = switch(eq(count, 0), LARGEST, np.float64(np.inf))
    factorials: Any = gammaln(count + 1)
    return count * minimum(maximum(linear, -most), most) - factorials - exp(linear) + possible
