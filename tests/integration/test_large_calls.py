"""A call of thousands of prompts over the real engine, whose caller leaves while they come in."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from tandem_engine.api.config import EngineConfig, ScheduleConfig
from tandem_engine.api.engine_client import EngineClient, OutputStream
from tandem_engine.async_engine.async_engine import AsyncEngine
from tandem_engine.build import build_engine
from tandem_serve.http.app import build_app
from tandem_serve.http.settings import HttpSettings
from tandem_serve.testing import Caller, client_of
from tests.integration.test_async_engine import all_free
from tests.patience import until
from tests.tiny import TINY

CONFIG = EngineConfig(
    model_path=str(TINY),
    dtype="float32",
    num_kv_blocks=64,
    max_seq_len=128,
    num_threads=1,
    schedule=ScheduleConfig(template_type="Mix", cache_block_size=16),
)
SMALL = {"model": "tiny", "prompt": "a", "max_tokens": 1}
LARGE = {"model": "tiny", "prompt": ["47+38="] * 3000}
NUM_BEFORE = 100


class WatchedEngine:
    """A real engine that counts the prompts that are submitted."""

    def __init__(self, engine: AsyncEngine, submitted: Callable[[int], None]) -> None:
        self._engine = engine
        self._submitted = submitted
        self.num_submitted = 0

    def submit(self, *args: Any, **kwargs: Any) -> OutputStream:
        stream = self._engine.submit(*args, **kwargs)
        self.num_submitted += 1
        self._submitted(self.num_submitted)
        return stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_nothing_is_left_of_a_caller_that_leaves_during_submission(
    *, is_stream: bool
) -> None:
    def leave(num_submitted: int) -> None:
        if num_submitted == NUM_BEFORE:
            caller.hang_up()

    engine = build_engine(CONFIG, report=lambda _: None)
    watched = WatchedEngine(engine, leave)
    http = HttpSettings(model_name="tiny", created_s=0)
    app = build_app(http, lambda: cast(EngineClient, watched))
    caller = Caller(app, "/v1/completions", LARGE | {"stream": is_stream})
    try:
        await caller.call()

        assert (await caller.received.get())["status"] == 499
        assert NUM_BEFORE <= watched.num_submitted < len(LARGE["prompt"])
        assert app.state.http.admission.num_in_flight == 0
        async with client_of(app) as client:  # Its turn comes when the aborts have been.
            assert (await client.post("/v1/completions", json=SMALL)).status_code == 200
        await until(lambda: all_free(engine))
    finally:
        await engine.stop()
