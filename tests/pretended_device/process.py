"""A process that has the pretended device, for tests."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from tests.patience import HANG_S
from tests.pretended_device.tensors import install
from tests.unit.engine.parallel.rank_processes import CONTEXT

T = TypeVar("T")
Run = Callable[..., Any]
"""Calls a function of a module with arguments, over there; raises what it raises."""


@contextmanager
def device_process() -> Iterator[Run]:
    """Have such a process meanwhile."""
    with ProcessPoolExecutor(1, mp_context=CONTEXT, initializer=install) as process:

        def run(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
            return process.submit(function, *args, **kwargs).result(HANG_S)

        yield run
