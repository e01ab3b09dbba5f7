"""Steps that are all cut where they can be, whether it pays or not; and steps that are not."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tandem_engine.microbatch.gate import MicroBatchGate
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.runner.micro_batch_control import EVERY_STEP


def forced_cuts() -> AbstractContextManager[None]:
    """Have every step cut that can be."""
    return _priced(EVERY_STEP)


def no_cuts() -> AbstractContextManager[None]:
    """Have no step cut."""
    return _priced(None)


@contextmanager
def _priced(prices: CutPrices | None) -> Iterator[None]:
    """Have the gate of rank 0, which is in this process, hand out these prices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MicroBatchGate, "prices", lambda _: prices)
        yield
