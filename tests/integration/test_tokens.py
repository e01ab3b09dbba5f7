"""Tokens and logits of the engine against transformers, greedy in float32."""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tandem_engine.api.config import EngineConfig, ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.registry import open_device
from tandem_engine.engine import Engine
from tandem_engine.kvcache.capacity import Capacity
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.runner.batch import FlatBatch
from tandem_engine.runner.runner import ModelRunner
from tests.integration.one_rank import engine_of_one_rank
from tests.slow import slow_but
from tests.tiny import TINY

NUM_PROMPTS = 64
LONGEST_PROMPT = 700
NUM_OUTPUT = 12
BLOCK_SIZE = 16
# Little more than the longest sequence: requests wait, and running ones lose their blocks.
NUM_BLOCKS = 48
FEW_AT_ONCE = 16  # tokens a step: hardly two sequences run side by side, so none gives way

SCHEDULES = {
    "budget 16": 16,
    "budget 64": 64,
    "budget 256": 256,
    "Standard": None,
}


def schedules(*often: str) -> list[Any]:
    """Return all schedules as parameters, those that `make test` leaves out marked slow."""
    return slow_but(often, SCHEDULES, value=SCHEDULES.__getitem__)


ARCHITECTURES = {
    "Qwen2, biases, tied": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "Qwen3, query and key norms, GQA": ("Qwen3ForCausalLM", {}),
    "Llama 3, MHA": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "Llama 3, MQA": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
    "Llama 3.1, scaled rope": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        },
    ),
    "Qwen2.5, YaRN beyond its positions": (
        "Qwen2ForCausalLM",
        {
            "max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        },
    ),
}


def schedule_of(budget: int | None) -> ScheduleConfig:
    if budget is None:
        return ScheduleConfig(cache_block_size=BLOCK_SIZE, max_prefill_tokens=2048)
    split = SplitFuseConfig(split_chunk_tokens=budget, split_start_batch_size=0)
    return ScheduleConfig(template_type="Mix", cache_block_size=BLOCK_SIZE, split_fuse=split)


SELDOM = ("Llama 3, MHA", "Qwen2, biases, tied", "Qwen3, query and key norms, GQA")
"""Those that `make test` leaves out: MQA is further from GQA, Qwen2.5 has biases, too, and
tandem-tiny is a Qwen3."""


def prompts_of(vocab_size: int) -> list[tuple[int, ...]]:
    """64 prompts of 1 … 700 tokens, the ends of the range included."""
    chance = random.Random(20)
    lengths = [1, LONGEST_PROMPT, *(chance.randint(1, LONGEST_PROMPT) for _ in range(62))]
    return [tuple(chance.randrange(vocab_size) for _ in range(length)) for length in lengths]


class Recorder:
    """Keeps the logits that led to each token: request id → one row an output token."""

    def __init__(self, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logits: dict[str, list[Tensor]] = {}
        self._forward = runner.forward
        monkeypatch.setattr(runner, "forward", self.forward)

    def forward(self, batch: FlatBatch) -> Tensor:
        logits = self._forward(batch)
        for row, values in zip(batch.yielding, logits, strict=True):
            self.logits.setdefault(row.request.request_id, []).append(values.clone())
        return logits


def run_mixed(engine: Engine, prompts: Sequence[tuple[int, ...]]) -> dict[str, list[int]]:
    for index, prompt in enumerate(prompts):
        engine.add(
            Request(
                request_id=str(index),
                prompt_token_ids=prompt,
                sampling=SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0),
                max_new_tokens=NUM_OUTPUT,
            )
        )
    tokens: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    while engine.has_work:
        progress = engine.step(time.perf_counter)
        assert not progress.failed
        engine.check_integrity()
        for advance in progress.advances:
            tokens[advance.sequence_id] += [token.token_id for token in advance.tokens]
    return tokens


@torch.inference_mode()
def compare(checkpoint: Path, budget: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    runtime = open_device("cpu")
    decoder = load_decoder(checkpoint, dtype="float32", runtime=runtime, max_positions=1024)
    prompts = prompts_of(decoder.config.vocab_size)
    config = EngineConfig(model_path=str(checkpoint), schedule=schedule_of(budget))
    capacity = Capacity(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, max_seq_len=1024)
    engine = engine_of_one_rank(config, decoder, capacity, runtime)
    recorder = Recorder(engine._runner, monkeypatch)  # type: ignore[arg-type]

    tokens = run_mixed(engine, prompts)
    if budget != FEW_AT_ONCE:
        assert engine.stats().num_preemptions > 0

    largest = 0.0
    for index, prompt in enumerate(prompts):
        said = tokens[str(index)]
        whole = torch.tensor([[*prompt, *said]])
        expected = reference(whole).logits[0, len(prompt) - 1 : -1]
        # Greedy step by step: with the tokens before it equal, each token must be the likeliest.
        assert said == expected.argmax(-1).tolist()
        got = torch.stack(recorder.logits[str(index)])
        largest = max(largest, (got - expected).abs().max().item())
    assert largest <= 1e-4


# What an architecture computes does not depend on the schedule; tandem-tiny has the schedules.
@pytest.mark.parametrize("budget", schedules("budget 64"))
@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        pytest.param(*each, id=name, marks=pytest.mark.slow if name in SELDOM else ())
        for name, each in ARCHITECTURES.items()
    ],
)
def test_random_weights_give_the_tokens_of_transformers(
    make_checkpoint: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    architecture: str,
    overrides: dict[str, object],
    budget: int | None,
) -> None:
    checkpoint = make_checkpoint(architecture, **{"max_position_embeddings": 1024, **overrides})
    compare(checkpoint, budget, monkeypatch)


@pytest.mark.parametrize("budget", schedules("budget 64"))
def test_tandem_tiny_gives_the_tokens_of_transformers(
    monkeypatch: pytest.MonkeyPatch, budget: int | None
) -> None:
    compare(TINY, budget, monkeypatch)
