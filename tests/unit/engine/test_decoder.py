"""The decoder against transformers: same checkpoint, same tokens, same logits."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.device.attention import build_attention_metadata
from tandem_engine.device.cpu.runtime import CpuRuntime
from tandem_engine.model.decoder import (
    Decoder,
    KVCache,
    allocate_host_cache,
    allocate_kv_cache,
)
from tandem_engine.model.load_decoder import load_decoder

BLOCK_SIZE = 4
RUNTIME = CpuRuntime(memory_bytes=1 << 30)
LLAMA31_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LONG_FACTORS = {"short_factor": [1.0] * 8, "long_factor": [1.0 + pair / 2 for pair in range(8)]}
BEYOND: dict[str, dict[str, Any]] = {
    "YaRN": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        **LONG_FACTORS,
    },
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen 2.5": ("Qwen2ForCausalLM", {}),
    "Qwen 3": ("Qwen3ForCausalLM", {"num_hidden_layers": 3, "tie_word_embeddings": True}),
    "Qwen 3 with heads wider than hidden": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "Llama 3 with as many KV heads": ("LlamaForCausalLM", {"num_key_value_heads": 4}),
    "Llama 3.1": ("LlamaForCausalLM", {"rope_parameters": LLAMA31_ROPE}),
    "Llama with all biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "one KV head": ("LlamaForCausalLM", {"num_key_value_heads": 1}),
}


class Sequences:
    """Sequences that are computed in any cuts; keeps what the scheduler would keep."""

    def __init__(self, decoder: Decoder, sequences: Sequence[Sequence[int]]) -> None:
        self._decoder = decoder
        self._sequences = sequences
        self._done = [0] * len(sequences)
        blocks = [-(-len(tokens) // BLOCK_SIZE) for tokens in sequences]
        # Blocks of the sequences lie across each other, last ones first.
        ids = list(range(sum(blocks)))
        self._tables = [[ids.pop() for _ in range(count)] for count in blocks]
        self._cache: KVCache = allocate_kv_cache(
            decoder.cache_layout(BLOCK_SIZE), num_blocks=sum(blocks), device=decoder.device
        )
        self.logits: list[list[Tensor]] = [[] for _ in sequences]

    def step(self, rows: dict[int, int]) -> None:
        """Compute so many more tokens of each sequence; collect the logits of all of them."""
        starts = [self._done[row] for row in rows]
        tokens = [
            token
            for (row, count), start in zip(rows.items(), starts, strict=True)
            for token in self._sequences[row][start : start + count]
        ]
        metadata = build_attention_metadata(
            query_lens=list(rows.values()),
            context_lens=[
                start + count for start, count in zip(starts, rows.values(), strict=True)
            ],
            block_tables=[self._tables[row] for row in rows],
            block_size=BLOCK_SIZE,
        )
        with torch.inference_mode():
            logits = self._decoder.forward(
                torch.tensor(tokens),
                self._cache,
                metadata,
                logits_rows=torch.arange(len(tokens)),
            )
        assert logits.dtype == torch.float32
        for (row, count), part in zip(
            rows.items(), torch.split(logits, list(rows.values())), strict=True
        ):
            self.logits[row] += part
            self._done[row] += count


def expected_logits(folder: Path, tokens: Sequence[int]) -> Tensor:
    """[tokens, vocab] float32, from transformers."""
    model = import_module("transformers").AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    )
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([list(tokens)])).logits[0]
    return logits


def random_tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(0, 272, (count,), generator=generator).tolist()
    return tokens


@pytest.mark.parametrize(("architecture", "overrides"), MODELS.values(), ids=list(MODELS))
def test_logits_are_those_of_transformers_in_any_cut(
    make_checkpoint: Callable[..., Path], architecture: str, overrides: dict[str, Any]
) -> None:
    folder = make_checkpoint(architecture, **overrides)
    decoder = load_decoder(folder, runtime=RUNTIME)
    whole, cut, late = (random_tokens(count, seed) for seed, count in enumerate([21, 25, 9]))
    sequences = Sequences(decoder, [whole, cut, late])

    sequences.step({0: 16})  # a prompt as one chunk
    sequences.step({0: 1, 1: 7})  # then decodes, while another prompt comes in chunks
    sequences.step({0: 1, 1: 8})
    sequences.step({0: 1, 1: 1, 2: 8})  # a chunk of one token
    sequences.step({0: 1, 1: 5, 2: 1})
    sequences.step({0: 1, 1: 1})
    sequences.step({1: 1})
    sequences.step({1: 2})

    for tokens, logits in zip([whole, cut, late], sequences.logits, strict=True):
        torch.testing.assert_close(
            torch.stack(logits), expected_logits(folder, tokens), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("rope", BEYOND.values(), ids=list(BEYOND))
def test_logits_are_those_of_transformers_beyond_what_the_model_saw(
    make_checkpoint: Callable[..., Path], rope: dict[str, Any]
) -> None:
    longest = 64 if rope["rope_type"] == "longrope" else 16
    folder = make_checkpoint(
        "Qwen3ForCausalLM",
        rope_parameters={**rope, "rope_theta": 1e4},
        max_position_embeddings=longest,
    )
    tokens = random_tokens(64, 0)

    decoder = load_decoder(folder, runtime=RUNTIME)

    assert decoder.config.max_position_embeddings == decoder.max_positions == 64
    torch.testing.assert_close(
        forward(decoder, tokens, range(64)), expected_logits(folder, tokens), atol=1e-4, rtol=0
    )


def test_only_the_rows_that_are_asked_for_are_projected(
    make_checkpoint: Callable[..., Path],
) -> None:
    decoder = load_decoder(make_checkpoint("Qwen3ForCausalLM"), runtime=RUNTIME)
    tokens = random_tokens(8, 0)
    sequences = Sequences(decoder, [tokens])
    sequences.step({0: 8})

    picked = forward(decoder, tokens, [7, 2])

    torch.testing.assert_close(
        picked, torch.stack([sequences.logits[0][7], sequences.logits[0][2]])
    )
    assert forward(decoder, tokens, []).shape == (0, 272)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_single_precision(
    make_checkpoint: Callable[..., Path], dtype: Any
) -> None:
    folder = make_checkpoint("Qwen2ForCausalLM")
    tokens = random_tokens(24, 0)

    half = forward(load_decoder(folder, dtype=dtype, runtime=RUNTIME), tokens, range(24))

    single = expected_logits(folder, tokens)
    assert half.dtype == torch.float32
    assert float((half - single).norm() / single.norm()) < 0.03


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.int8])
def test_the_cache_takes_as_many_bytes_as_its_layout_says(
    make_checkpoint: Callable[..., Path], dtype: torch.dtype | None
) -> None:
    decoder = load_decoder(make_checkpoint("Qwen3ForCausalLM"), runtime=RUNTIME)
    layout = decoder.cache_layout(BLOCK_SIZE, dtype)

    cache = allocate_kv_cache(layout, num_blocks=3, device="cpu")

    total = sum(tensor.nbytes for layer in cache for tensor in layer)
    assert total == cache.blocks.nbytes == 3 * layout.block_bytes
    assert allocate_host_cache(cache, num_blocks=5).nbytes == 5 * layout.block_bytes


def forward(decoder: Decoder, tokens: Sequence[int], logits_rows: Sequence[int]) -> Tensor:
    """One prompt in one step."""
    blocks = -(-len(tokens) // BLOCK_SIZE)
    metadata = build_attention_metadata(
        query_lens=[len(tokens)],
        context_lens=[len(tokens)],
        block_tables=[range(blocks)],
        block_size=BLOCK_SIZE,
    )
    cache = allocate_kv_cache(
        decoder.cache_layout(BLOCK_SIZE), num_blocks=blocks, device=decoder.device
    )
    with torch.inference_mode():
        return decoder.forward(
            torch.tensor(tokens),
            cache,
            metadata,
            logits_rows=torch.tensor(logits_rows, dtype=torch.int64),
        )
