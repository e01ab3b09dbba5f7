"""A request is given up at every collective of a step in two halves; the others notice nothing.

Ranks are real, and so is the engine's loop: it learns of the abort while the step is computed.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

from tandem_engine.api.request import SamplingParams
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.async_engine.stream import RequestStream
from tandem_engine.build import build_engine
from tandem_engine.runner.stage_collectives import CommunicatorCollectives
from tests.integration.bench import conversation
from tests.integration.faulty_ranks import NUM_TOKENS
from tests.integration.forced_cuts import forced_cuts
from tests.integration.test_micro_batch_faults import cut_config
from tests.patience import HANG_S

CONVERSATIONS: Final = (3, 5, 14, 15)
NUM_LAYERS: Final = 4
"""Of tandem-tiny."""
NUM_COLLECTIVES: Final = 2 * (2 * NUM_LAYERS + 2)
"""Of a step in two halves: a sum behind the embedding, two a layer, and the logits."""


class Pause:
    """Holds rank 0 in the collective of a chosen number, counted from `arm` on."""

    def __init__(self, put: Callable[..., None]) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._left = 0
        for name in ("all_reduce", "gather_columns"):
            put(CommunicatorCollectives, name, self._behind(getattr(CommunicatorCollectives, name)))

    def arm(self, number: int) -> None:
        """Hold the collective `number` from here, from 1 on."""
        self.entered.clear()
        self.go_on.clear()
        self._left = number

    def _behind(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        def paused(*args: Any) -> Any:
            with self._lock:
                self._left -= 1
                is_due = self._left == 0
            if is_due:
                self.entered.set()
                assert self.go_on.wait(HANG_S)
            return collective(*args)

        return paused


def ask(engine: AsyncEngine, name: str) -> list[RequestStream]:
    params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.0, ignore_eos=True)
    found = [engine.submit(f"{name}-{one}", conversation(one), params) for one in CONVERSATIONS]
    assert all(isinstance(one, RequestStream) for one in found)
    return found  # type: ignore[return-value]


async def read(stream: RequestStream) -> tuple[int, ...]:
    return tuple([token_id async for output in stream for token_id in output.token_ids])


@pytest.mark.slow
async def test_an_abort_at_every_collective_of_a_cut_step_leaves_the_others_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause = Pause(monkeypatch.setattr)
    with forced_cuts():
        engine = build_engine(cut_config())
        try:
            expected = await asyncio.gather(*map(read, ask(engine, "whole")))
            for number in range(1, NUM_COLLECTIVES + 1):
                await abort_at(engine, pause, number, expected)
            engine.check_health()
            assert (await asyncio.gather(*map(read, ask(engine, "after")))) == expected
        finally:
            await engine.stop()


async def abort_at(
    engine: AsyncEngine, pause: Pause, number: int, expected: list[tuple[int, ...]]
) -> None:
    """Give up one of the requests, each in turn, while the step is in this collective."""
    victim = number % len(CONVERSATIONS)
    pause.arm(number)
    streams = ask(engine, str(number))
    reading = [asyncio.create_task(read(one)) for one in streams]
    assert await asyncio.to_thread(pause.entered.wait, HANG_S)
    streams[victim].abort()
    pause.go_on.set()

    async with asyncio.timeout(HANG_S):
        said = await asyncio.gather(*reading)

    assert len(said[victim]) < NUM_TOKENS
    for at, tokens in enumerate(said):
        assert tokens == expected[at][: len(tokens)], number
        assert at == victim or len(tokens) == NUM_TOKENS
    async with asyncio.timeout(HANG_S):
        while engine.stats().num_free_kv_blocks < engine.stats().num_kv_blocks:
            await asyncio.sleep(0.01)
