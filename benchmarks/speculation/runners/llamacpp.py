"""Runs llama.cpp with drafts, by llama-cpp-python's own interface; models are GGUF files.

One sequence at a time: the interface has no batches.
"""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from benchmarks.peers.runners.protocol import Load, Unsupported, clock, serve

_BATCH: Final = 512
_NGRAM: Final = 2
"""llama-cpp-python's own default."""


class SpeculatingLlamaCpp:
    """A model, and what drafts for it."""

    def __init__(self, load: Load) -> None:
        if load.num_sequences > 1:
            raise Unsupported("llama-cpp-python drafts for one sequence at a time.")
        self._draft_model = _drafter(load)
        self._llama = _open(load.model, load, draft_model=self._draft_model)
        self._banned = load.banned
        self.answers: list[list[int]] = []
        """Of the last row."""
        self.version = f"llama-cpp-python {version('llama-cpp-python')}"
        self.settings: dict[str, Any] = {"n_threads": load.num_threads, "n_batch": _BATCH}

    def generate(
        self, prompts: Sequence[Sequence[int]], num_output: int, *, is_sampled: bool
    ) -> list[list[float]]:
        """See `protocol.Engine`."""
        if is_sampled:
            raise Unsupported("This runner has greedy rows only.")
        rows = [self._continue(prompt, num_output) for prompt in prompts]
        self.answers = [answer for answer, _ in rows]
        return [times_s for _, times_s in rows]

    def _continue(self, prompt: Sequence[int], num_output: int) -> tuple[list[int], list[float]]:
        from llama_cpp import LogitsProcessorList  # type: ignore[import-not-found]  # noqa: PLC0415

        answer: list[int] = []
        times_s: list[float] = []
        tokens = self._llama.generate(
            list(prompt),
            temp=0.0,
            repeat_penalty=1.0,
            logits_processor=LogitsProcessorList([self._ban]),
        )
        for token in tokens:
            answer.append(int(token))
            times_s.append(clock())
            if len(answer) == num_output:
                break
        return answer, times_s

    def _ban(self, _: Any, scores: Any) -> Any:
        scores[self._banned] = float("-inf")
        return scores


def _open(model: str, load: Load, **options: Any) -> Any:
    from llama_cpp import Llama  # noqa: PLC0415  # not in .venv

    return Llama(
        model,
        n_ctx=load.num_tokens + 256,
        n_batch=_BATCH,
        n_threads=load.num_threads,
        n_threads_batch=load.num_threads,
        verbose=False,
        **options,
    )


def _drafter(load: Load) -> Any:
    """Return what llama-cpp-python asks for drafts."""
    match load.drafts:
        case "ngram":
            from llama_cpp.llama_speculative import (  # type: ignore[import-not-found]  # noqa: PLC0415
                LlamaPromptLookupDecoding,
            )

            return LlamaPromptLookupDecoding(_NGRAM, load.num_drafts)
        case "draft":
            return _ModelDrafter(_open(load.draft_model, load), load.num_drafts)
        case _:
            return None


class _ModelDrafter:
    """Drafts of a second model: greedy, with the tokens that it has computed kept."""

    def __init__(self, llama: Any, num_drafts: int) -> None:
        self._llama = llama
        self._num_drafts = num_drafts

    def __call__(self, input_ids: Any, /, **_: Any) -> Any:
        import numpy as np  # noqa: PLC0415  # it comes with llama-cpp-python

        drafts: list[int] = []
        for token in self._llama.generate(input_ids.tolist(), temp=0.0, repeat_penalty=1.0):
            drafts.append(int(token))
            if len(drafts) == self._num_drafts:
                break
        return np.array(drafts, dtype=np.intc)


if __name__ == "__main__":
    serve(SpeculatingLlamaCpp)
