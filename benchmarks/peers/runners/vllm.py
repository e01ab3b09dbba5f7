"""Runs vLLM on a CPU, its engine stepped by hand; the model is the checkpoint itself."""

import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from benchmarks.peers.runners.protocol import TEMPERATURE, TOP_P, Load, Unsupported, clock, serve

_GIB: Final = 2**30


class VllmEngine:
    """vLLM's offline engine."""

    def __init__(self, load: Load) -> None:
        if load.weights != "bf16":
            raise Unsupported("vLLM quantises no checkpoint of bf16 at load on a CPU.")
        # Bound, as is its own default, whether or not others are (`Load.pin`).
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        # vLLM reads its environment when it is imported.
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": str(-(-load.kv_bytes // _GIB) + 1),
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_NO_USAGE_STATS": "1",
        }
        from vllm import LLM  # type: ignore[import-not-found]  # noqa: PLC0415  # not in .venv

        self._llm = LLM(
            load.model,
            dtype="bfloat16",
            max_model_len=load.longest + 1,
            max_num_seqs=max(load.num_sequences, 2),
            enable_prefix_caching=False,
            disable_log_stats=True,
            skip_tokenizer_init=True,
            speculative_config=_speculation(load),
        )
        self._banned = load.banned
        self.answers: list[list[int]] = []
        """Of the last row."""
        self._num_requests = 0
        self.version = version(_package())
        self.settings: dict[str, Any] = {
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "max_num_seqs": max(load.num_sequences, 2),
            "torch.compile": "vLLM's default",
        }

    def generate(
        self, prompts: Sequence[Sequence[int]], num_output: int, *, is_sampled: bool
    ) -> list[list[float]]:
        """See `protocol.Engine`."""
        from vllm import SamplingParams  # noqa: PLC0415
        from vllm.sampling_params import (  # type: ignore[import-not-found]  # noqa: PLC0415
            RequestOutputKind,
        )

        sampling = SamplingParams(
            temperature=TEMPERATURE if is_sampled else 0,
            top_p=TOP_P if is_sampled else 1,
            max_tokens=num_output,
            ignore_eos=True,
            detokenize=False,
            # It takes no logit_bias beside drafts; tokens that would end an answer it bans.
            stop_token_ids=self._banned or None,
            min_tokens=num_output if self._banned else 0,
            output_kind=RequestOutputKind.DELTA,
        )
        engine = self._llm.llm_engine
        times_s: dict[str, list[float]] = {}
        answers: dict[str, list[int]] = {}
        for prompt in prompts:
            self._num_requests += 1
            name = str(self._num_requests)
            times_s[name], answers[name] = [], []
            engine.add_request(name, {"prompt_token_ids": list(prompt)}, sampling)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now_s = clock()
            for output in outputs:
                # vLLM may lengthen the name that it was given.
                name = output.request_id.partition("-")[0]
                times_s[name] += [now_s] * len(output.outputs[0].token_ids)
                answers[name] += output.outputs[0].token_ids
        self.answers = list(answers.values())
        return list(times_s.values())


def _speculation(load: Load) -> dict[str, Any] | None:
    """Return vLLM's settings of the method."""
    match load.drafts:
        case "ngram":
            # The lengths that vLLM's documentation gives as its example.
            lengths = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
            return {"method": "ngram", "num_speculative_tokens": load.num_drafts, **lengths}
        case "draft":
            return {"model": load.draft_model, "num_speculative_tokens": load.num_drafts}
        case _:
            return None


def _package() -> str:
    from importlib.metadata import PackageNotFoundError  # noqa: PLC0415

    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return "vllm"
    return "vllm-cpu"


if __name__ == "__main__":
    serve(VllmEngine)
