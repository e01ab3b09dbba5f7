"""Tables of cosines and sines against those of transformers."""

from importlib import import_module
from typing import Any

import pytest
import torch

from tandem_engine.model.rope import (
    Rope,
    RopeDefault,
    RopeLinear,
    RopeLlama3,
    RopeTable,
    RopeYarn,
)

HEAD_DIM, NUM_POSITIONS = 64, 512

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
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rope", "parameters"), KINDS.values(), ids=list(KINDS))
def test_the_table_is_that_of_transformers(
    rope: Rope, parameters: dict[str, Any], dtype: torch.dtype
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
        max_position_embeddings=NUM_POSITIONS,
        rope_parameters=parameters,
    )
    llama = import_module("transformers.models.llama.modeling_llama")
    expected = llama.LlamaRotaryEmbedding(config)(torch.empty(0, dtype=dtype), positions[None])
    # One step of the type: the cosine of a vector depends on how torch splits it among threads.
    torch.testing.assert_close(
        (cos, sin), (expected[0][0], expected[1][0]), atol=1e-6, rtol=torch.finfo(dtype).eps
    )
