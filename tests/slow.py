"""Parameters of which `make test` takes some, and areas take all."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest


def slow_but(
    often: Collection[str], names: Iterable[str], *, value: Callable[[str], Any] = str
) -> list[Any]:
    """Return a parameter for each name, marked slow unless it is one of `often`.

    Args:
        often: Names of those that `make test` takes.
        names: Names of all, which are the ids of the parameters.
        value: Gives the parameter of a name; by default the name itself.
    """
    return [
        pytest.param(value(name), id=name, marks=() if name in often else pytest.mark.slow)
        for name in names
    ]
