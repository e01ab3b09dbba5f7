"""Tables of cosines and sines against those of transformers."""

from importlib import import_module
from typing import Any

import pytest
import torch

from tandem_engine.model.rope import (
    Rope,
    RopeDefault,
    RopeDynamic,
    RopeLinear,
    RopeLlama3,
    RopeLong,
    RopeTable,
    RopeYarn,
)

HEAD_DIM, NUM_POSITIONS = 64, 512
SHORT, LONG = (tuple(1 + pair * step for pair in range(HEAD_DIM // 2)) for step in (0.02, 1.5))

KINDS: dict[str, tuple[Rope, dict[str, Any]]] = {
    "default": (RopeDefault(theta=1e4), {"rope_type": "default", "rope_theta": 1e4}),
    "default with a large theta": (
        RopeDefault(theta=1e6),
        {"rope_type": "default", "rope_theta": 1e6},
    ),
    "linear": (
        RopeLinear(theta=1e4, factor=3.0),
        {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    ),
    "llama3": (
        RopeLlama3(
            theta=5e5,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
        {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "yarn": (
        RopeYarn(theta=1e6, factor=4.0, original_max_position_embeddings=128),
        {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ),
    "yarn with all its knobs": (
        RopeYarn(
            theta=1e4,
            factor=8.0,
            original_max_position_embeddings=64,
            beta_fast=16.0,
            beta_slow=2.0,
            mscale=0.7,
            mscale_all_dim=1.3,
            truncate=False,
        ),
        {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "mscale": 0.7,
            "mscale_all_dim": 1.3,
            "truncate": False,
        },
    ),
    "yarn with a given amplitude": (
        RopeYarn(theta=1e6, factor=4.0, original_max_position_embeddings=128, attention_factor=1.5),
        {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "attention_factor": 1.5,
        },
    ),
    "dynamic, up to what the model saw": (
        RopeDynamic(theta=1e4, factor=4.0, max_position_embeddings=NUM_POSITIONS),
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    ),
    "longrope beyond what the model saw": (
        RopeLong(
            theta=1e4,
            short_factor=SHORT,
            long_factor=LONG,
            factor=4.0,
            original_max_position_embeddings=128,
        ),
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
            "original_max_position_embeddings": 128,
        },
    ),
    "longrope up to what the model saw": (
        RopeLong(
            theta=1e4,
            short_factor=SHORT,
            long_factor=LONG,
            factor=1.0,
            original_max_position_embeddings=NUM_POSITIONS,
        ),
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
        },
    ),
    "longrope with a given amplitude": (
        RopeLong(
            theta=1e4,
            short_factor=SHORT,
            long_factor=LONG,
            factor=8.0,
            original_max_position_embeddings=64,
            attention_factor=1.25,
        ),
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": list(SHORT),
            "long_factor": list(LONG),
            "factor": 8.0,
            "attention_factor": 1.25,
            "original_max_position_embeddings": 64,
        },
    ),
}
BEYOND: dict[str, tuple[Rope, dict[str, Any]]] = {
    "linear": KINDS["linear"],
    "yarn": KINDS["yarn"],
    "dynamic": (
        RopeDynamic(theta=1e4, factor=4.0, max_position_embeddings=128),
        {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rope", "parameters"), KINDS.values(), ids=list(KINDS))
def test_the_table_is_that_of_transformers(
    rope: Rope, parameters: dict[str, Any], dtype: torch.dtype
) -> None:
    assert_same_table(rope, parameters, dtype, max_position_embeddings=NUM_POSITIONS)


@pytest.mark.parametrize(("rope", "parameters"), BEYOND.values(), ids=list(BEYOND))
def test_the_table_is_that_of_transformers_beyond_max_position_embeddings(
    rope: Rope, parameters: dict[str, Any]
) -> None:
    assert_same_table(rope, parameters, torch.float32, max_position_embeddings=128)


def assert_same_table(
    rope: Rope, parameters: dict[str, Any], dtype: torch.dtype, *, max_position_embeddings: int
) -> None:
    table = RopeTable(
        rope, head_dim=HEAD_DIM, num_positions=NUM_POSITIONS, dtype=dtype, device="cpu"
    )
    positions = torch.randperm(NUM_POSITIONS, generator=torch.Generator().manual_seed(0))

    # A half of each is kept; the other half of a head is the same.
    cos, sin = (half.repeat(1, 2) for half in table.table[positions].chunk(2, dim=1))

    config = import_module("transformers").LlamaConfig(
        hidden_size=HEAD_DIM * 2,
        num_attention_heads=2,
        max_position_embeddings=max_position_embeddings,
        rope_parameters=dict(parameters),
    )
    llama = import_module("transformers.models.llama.modeling_llama")
    expected = llama.LlamaRotaryEmbedding(config)(torch.empty(0, dtype=dtype), positions[None])
    # One step of the type: the cosine of a vector depends on how torch splits it among threads.
    torch.testing.assert_close(
        (cos, sin), (expected[0][0], expected[1][0]), atol=1e-6, rtol=torch.finfo(dtype).eps
    )
