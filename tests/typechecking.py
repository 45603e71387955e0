"""The run-time type checker of the tests: ints are fine where floats are asked for."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
