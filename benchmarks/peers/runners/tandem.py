"""Runs Tandem's engine through the interface that its server uses, without server and Ray."""

import asyncio
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from benchmarks.peers.runners.protocol import (
    TEMPERATURE,
    TOP_P,
    Load,
    Unsupported,
    clock,
    serve,
)

CHUNK: Final = 512
BLOCK: Final = 128


class TandemEngine:
    """The engine with its step loop in a thread, and the event loop that reads it."""

    def __init__(self, load: Load) -> None:
        # Imported here: the process is pinned by then, and its stdout is set aside.
        from tandem_engine.api.config import (  # noqa: PLC0415
            EngineConfig,
            ScheduleConfig,
            SplitFuseConfig,
        )
        from tandem_engine.build import build_engine  # noqa: PLC0415

        extra: dict[str, Any] = {}
        if load.weights != "bf16":
            if "quantization" not in EngineConfig.model_fields:
                raise Unsupported("This engine has no quantization: EngineConfig does not know it.")
            extra["quantization"] = load.weights
        self._loop = asyncio.new_event_loop()
        self._num_rows = 0
        # A block more a sequence than the tokens need: the last one is never full.
        blocks = -(-load.num_tokens // BLOCK) + load.num_sequences
        config = EngineConfig(
            model_path=load.model,
            dtype="bfloat16",
            max_seq_len=load.longest + 1,
            num_kv_blocks=blocks,
            num_threads=load.num_threads,
            schedule=ScheduleConfig(
                template_type="Mix",
                cache_block_size=BLOCK,
                max_batch_size=max(load.num_sequences, 2),
                enable_prefix_cache=False,
                split_fuse=SplitFuseConfig(split_chunk_tokens=CHUNK, split_start_batch_size=0),
            ),
            **extra,
        )
        self._engine = build_engine(config, report=lambda _: None)
        self.version = version("tandem")
        self.settings: dict[str, Any] = {
            "splitChunkTokens": CHUNK,
            "cacheBlockSize": BLOCK,
            "num_kv_blocks": blocks,
            **extra,
        }

    def generate(
        self, prompts: Sequence[Sequence[int]], num_output: int, *, is_sampled: bool
    ) -> list[list[float]]:
        """See `protocol.Engine`."""
        return self._loop.run_until_complete(self._all(prompts, num_output, is_sampled=is_sampled))

    async def _all(
        self, prompts: Sequence[Sequence[int]], num_output: int, *, is_sampled: bool
    ) -> list[list[float]]:
        from tandem_engine.api.request import SamplingParams  # noqa: PLC0415

        sampling = SamplingParams(
            max_tokens=num_output,
            temperature=TEMPERATURE if is_sampled else 0.0,
            top_p=TOP_P if is_sampled else 1.0,
            seed=self._num_rows,
            ignore_eos=True,
        )
        self._num_rows += 1
        streams = [
            self._engine.submit(f"{self._num_rows}-{number}", prompt, sampling)
            for number, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*map(self._times, streams))

    async def _times(self, stream: Any) -> list[float]:
        times_s: list[float] = []
        async for output in stream:
            times_s += [clock()] * len(output.token_ids)
        return times_s


if __name__ == "__main__":
    serve(TandemEngine)
