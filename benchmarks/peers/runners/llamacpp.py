"""Runs llama.cpp by its batch interface with token ids; the model is a GGUF file."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from benchmarks.peers.runners.protocol import TEMPERATURE, TOP_P, Load, clock, serve

_SEED: Final = 0
_BATCH: Final = 2048
_PHYSICAL_BATCH: Final = 512
"""Both are llama.cpp's own defaults."""


class LlamaCppEngine:
    """A model and one context that all rows share."""

    def __init__(self, load: Load) -> None:
        import llama_cpp  # type: ignore[import-not-found]  # noqa: PLC0415  # not in .venv

        self._lib = llama_cpp
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(
            load.model.encode(), llama_cpp.llama_model_default_params()
        )
        if not model:
            raise RuntimeError(f"llama.cpp cannot load {load.model}; see its log.")
        self._model = model
        self._vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = load.num_tokens + 256
        settings.n_batch = _BATCH
        settings.n_ubatch = _PHYSICAL_BATCH
        settings.n_threads = settings.n_threads_batch = load.num_threads
        settings.n_seq_max = load.num_sequences
        settings.kv_unified = True
        self._context = llama_cpp.llama_init_from_model(model, settings)
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)
        self._drawing = self._make_sampler()
        self._sampler: Any = None
        """Of the row; None: the likeliest token."""
        self.version = f"llama-cpp-python {version('llama-cpp-python')}"
        self.settings: dict[str, Any] = {
            "n_batch": _BATCH,
            "n_ubatch": _PHYSICAL_BATCH,
            "n_threads": load.num_threads,
            "kv": "f16, unified",
        }

    def generate(
        self, prompts: Sequence[Sequence[int]], num_output: int, *, is_sampled: bool
    ) -> list[list[float]]:
        """See `protocol.Engine`."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), True)  # noqa: FBT003  # C
        times_s: list[list[float]] = [[] for _ in prompts]
        self._sampler = self._drawing if is_sampled else None
        last = self._prefill(prompts, times_s)
        for done in range(1, num_output):
            rows = [
                (last[number], len(prompt) + done - 1, number, True)
                for number, prompt in enumerate(prompts)
            ]
            last = dict(self._decode(rows))
            now_s = clock()
            for times in times_s:
                times.append(now_s)
        return times_s

    def _prefill(
        self, prompts: Sequence[Sequence[int]], times_s: list[list[float]]
    ) -> dict[int, int]:
        """Compute the prompts in full batches, as a server would; each one's first token."""
        rows = [
            (token, position, number, position == len(prompt) - 1)
            for number, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        firsts: dict[int, int] = {}
        for begin in range(0, len(rows), _BATCH):
            ended = dict(self._decode(rows[begin : begin + _BATCH]))
            firsts |= ended
            now_s = clock()
            for number in ended:
                times_s[number].append(now_s)
        return firsts

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[tuple[int, int]]:
        """Compute (token, position, sequence, is_last) rows; the token that follows the last."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for at, (token, position, number, is_last) in enumerate(rows):
            batch.token[at] = token
            batch.pos[at] = position
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = number
            batch.logits[at] = is_last
        status = self._lib.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode answered {status}; see its log.")
        chosen = []
        for at, (_, _, number, is_last) in enumerate(rows):
            if is_last:
                chosen.append((number, self._choose(at)))
        return chosen

    def _choose(self, at: int) -> int:
        import numpy as np  # noqa: PLC0415  # it comes with llama-cpp-python

        if self._sampler is not None:
            return int(self._lib.llama_sampler_sample(self._sampler, self._context, at))
        logits = self._lib.llama_get_logits_ith(self._context, at)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())

    def _make_sampler(self) -> Any:
        """Make llama.cpp's own sampler chain."""
        lib = self._lib
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for part in (
            lib.llama_sampler_init_top_p(TOP_P, 1),
            lib.llama_sampler_init_temp(TEMPERATURE),
            lib.llama_sampler_init_dist(_SEED),
        ):
            lib.llama_sampler_chain_add(chain, part)
        return chain


if __name__ == "__main__":
    serve(LlamaCppEngine)
