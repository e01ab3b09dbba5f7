"""Memory of a rank, estimated before anything is loaded.

    memory of the replica / ranks = process + weights + largest step + KV cache + host blocks

Weights are those that loading would allocate, made without memory. The largest step is an estimate
by the sizes of its activations; a replica measures it when it starts (`runner.profile`), and goes
by that.
"""

from pathlib import Path
from typing import Final

import torch

from tandem_engine.api.config import DType, Quantization
from tandem_engine.device.packing import ShapesOnly
from tandem_engine.kvcache.capacity import StepCost
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.parameters import Parameters, allocate_parameters
from tandem_engine.parallel.plan import RankPlan
from tandem_engine.quantization.read import resolve_scheme

PROCESS_BYTES: Final = 500 * 2**20
"""About what a process with torch holds before it reads weights."""
_FLOAT32_BYTES: Final = 4
_FEW_TOKENS: Final = 64
"""Tokens of the smallest step whose memory counts as fixed."""
_DTYPE: Final = "bfloat16"
"""Where config.json does not name one."""


def dtype_of(model: DecoderConfig, dtype: DType) -> str:
    """Return the type of weights that are not in 8 bits; auto takes the checkpoint's."""
    return (model.dtype if dtype == "auto" else dtype) or _DTYPE


def shapes_of(
    model: DecoderConfig,
    folder: Path,
    *,
    plan: RankPlan,
    dtype: DType = "auto",
    quantization: Quantization = "auto",
) -> Parameters:
    """Return what a rank would hold of a checkpoint: shapes without memory.

    Raises:
        CheckpointError: How the checkpoint is quantised is not understood.
    """
    return allocate_parameters(
        model,
        dtype=getattr(torch, dtype_of(model, dtype)),
        device="meta",
        kernels=ShapesOnly(),
        scheme=resolve_scheme(quantization, folder),
        plan=plan,
    )


def angle_bytes(model: DecoderConfig, num_positions: int) -> int:
    """Bytes of the table of cosines and sines, which each rank has."""
    return num_positions * model.head_dim * _FLOAT32_BYTES


def step_cost(plan: RankPlan, model: DecoderConfig, float_bytes: int) -> StepCost:
    """About what steps cost on a rank beside weights and KV cache."""
    # Attention and the feed-forward layer take turns in the same memory.
    attention = 2 * len(plan.query_rows) + 2 * len(plan.kv_rows)
    widest = max(attention, 3 * len(plan.intermediate))
    per_token = float_bytes * (2 * model.hidden_size + widest)
    logits = _FLOAT32_BYTES * plan.vocab_width if plan.is_last_stage else 0
    # The rank that samples has the logits of all, gathered.
    if plan.rank == 0 and plan.num_tp > 1:
        logits += _FLOAT32_BYTES * model.vocab_size
    return StepCost(fixed=_FEW_TOKENS * per_token, per_token=per_token, per_row=2 * logits)
