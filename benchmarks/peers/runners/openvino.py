"""Runs OpenVINO GenAI's continuous batching; the model is what `optimum-cli export` wrote."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from benchmarks.peers.runners.protocol import TEMPERATURE, TOP_P, Load, clock, serve

_GIB: Final = 2**30
_BUDGET: Final = 256
"""Its own default of a split-fuse step."""


class OpenVinoEngine:
    """A ContinuousBatchingPipeline, stepped by hand."""

    def __init__(self, load: Load) -> None:
        import openvino as ov  # type: ignore[import-not-found]  # noqa: PLC0415  # not in .venv
        import openvino_genai as genai  # type: ignore[import-not-found]  # noqa: PLC0415  # as above

        scheduler = genai.SchedulerConfig()
        scheduler.dynamic_split_fuse = True
        scheduler.max_num_batched_tokens = _BUDGET
        scheduler.enable_prefix_caching = False
        # A whole number of GiB is what it takes; only what is used is ever touched.
        scheduler.cache_size = -(-load.kv_bytes // _GIB) + 1
        scheduler.max_num_seqs = max(load.num_sequences, 2)
        properties = {
            "INFERENCE_NUM_THREADS": load.num_threads,
            "ENABLE_CPU_PINNING": load.pin,
            "INFERENCE_PRECISION_HINT": "bf16",
            "KV_CACHE_PRECISION": "bf16",
        }
        self._ov, self._genai = ov, genai
        self._pipeline = genai.ContinuousBatchingPipeline(load.model, scheduler, "CPU", properties)
        self._num_requests = 0
        self.version = version("openvino-genai")
        self.settings: dict[str, Any] = {
            **properties,
            "max_num_batched_tokens": _BUDGET,
            "dynamic_split_fuse": True,
        }

    def generate(
        self, prompts: Sequence[Sequence[int]], num_output: int, *, is_sampled: bool
    ) -> list[list[float]]:
        """See `protocol.Engine`."""
        import numpy as np  # noqa: PLC0415  # it comes with openvino

        config = self._genai.GenerationConfig()
        config.max_new_tokens = num_output
        config.ignore_eos = True
        config.do_sample = is_sampled
        if is_sampled:
            config.temperature, config.top_p = TEMPERATURE, TOP_P
        handles = []
        for prompt in prompts:
            self._num_requests += 1
            ids = self._ov.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(self._pipeline.add_request(self._num_requests, ids, config))
        times_s: list[list[float]] = [[] for _ in handles]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now_s = clock()
            for times, handle in zip(times_s, handles, strict=True):
                while handle.can_read():
                    parts = handle.read().values()
                    times.extend(now_s for part in parts for _ in part.generated_ids)
        return times_s


if __name__ == "__main__":
    serve(OpenVinoEngine)
