"""The whole forward pass as one call into the library: see forward.h."""

from collections.abc import Iterator
from ctypes import addressof, byref
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.cpu.native.arguments import rows_args, token_slots_args
from tandem_engine.device.cpu.native.library import (
    WEIGHT_KINDS,
    LayerArgs,
    Library,
    LinearArgs,
    ModelArgs,
    StepArgs,
    computed_in,
)
from tandem_engine.device.cpu.native.linear import (
    FLOAT_UNIT,
    INT8_UNIT,
    Int8PanelLinear,
    PanelLinear,
)
from tandem_engine.device.packed_model import PackedLayer, PackedLinear, PackedModel

_PANELS: Final = (PanelLinear, Int8PanelLinear)


def unsupported_reason(packed_model: PackedModel) -> str | None:
    """Reason for which the library does not compute all of it; None: it does."""
    if packed_model.dtype not in WEIGHT_KINDS:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in WEIGHT_KINDS)
        return f"the dtype is {str(packed_model.dtype).removeprefix('torch.')}, not one of {kinds}"
    unpacked = {part.name for part in _parts(packed_model) if not isinstance(part.linear, _PANELS)}
    if not unpacked:
        return None
    widths = {
        "hidden_size": packed_model.hidden_size,
        "num_attention_heads * head_dim": packed_model.num_heads * packed_model.head_dim,
        "intermediate_size": packed_model.intermediate_size,
    }
    named = ", ".join(f"{name} is {width}" for name, width in widths.items() if width % INT8_UNIT)
    return (
        f"{named}, and the inputs of linear layers must be a multiple of {FLOAT_UNIT}, or of "
        f"{INT8_UNIT} in 8 bits (here those of {', '.join(sorted(unpacked))} are not)"
    )


class NativeForward:
    """Implements `packed_model.ForwardPass`.

    One thread at a time may call it: activations lie in memory that is kept from step to step.

    Args:
        library: The kernels.
        packed_model: One for which `unsupported_reason` has no reason.
    """

    def __init__(self, library: Library, packed_model: PackedModel) -> None:
        self._network = packed_model
        self._layers = (LayerArgs * len(packed_model.layers))(
            *map(_layer_args, packed_model.layers)
        )
        self._model = _model_args(packed_model, addressof(self._layers))
        self._forward = library("forward", packed_model.dtype)
        self._count_activations = library("activations", packed_model.dtype)
        self._activations = torch.empty(0, dtype=computed_in(packed_model.dtype))

    def __call__(
        self,
        token_ids: Tensor,
        cache_blocks: Tensor,
        metadata: AttentionMetadata,
        logits_rows: Tensor,
    ) -> Tensor:
        """Compute one step."""
        is_int8 = kv_int8.is_int8(cache_blocks)
        assert is_int8 or cache_blocks.dtype == self._network.dtype, "this is a bug"  # noqa: S101
        logits = torch.empty(len(logits_rows), self._network.vocab_size)
        step = StepArgs(
            slots=token_slots_args(metadata),
            rows=rows_args(metadata),
            token_ids=token_ids.data_ptr(),
            logits_rows=logits_rows.data_ptr(),
            num_logits_rows=len(logits_rows),
            cache=cache_blocks.data_ptr(),
            num_blocks=cache_blocks.shape[2],
            block_size=metadata.block_size,
            is_cache_int8=is_int8,
            activations=self._activations_for(metadata.num_tokens).data_ptr(),
            logits=logits.data_ptr(),
        )
        self._forward(byref(self._model), byref(step))
        return logits

    def _activations_for(self, num_tokens: int) -> Tensor:
        count = self._count_activations(byref(self._model), num_tokens)
        if count > len(self._activations):
            self._activations = self._activations.new_empty(count)
        return self._activations


class _Part(NamedTuple):
    name: str
    linear: PackedLinear


def _parts(packed_model: PackedModel) -> Iterator[_Part]:
    for layer in packed_model.layers:
        yield _Part("qkv", layer.qkv)
        yield _Part("output", layer.output)
        yield _Part("gate_up", layer.gate_up)
        yield _Part("down", layer.down)
    yield _Part("head", packed_model.head)


def _linear_args(linear: Any) -> LinearArgs:
    if isinstance(linear, Int8PanelLinear):
        return LinearArgs(in_int8=linear.args)
    return LinearArgs(in_float=linear.args)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _layer_args(layer: PackedLayer) -> LayerArgs:
    return LayerArgs(
        attention_norm=_pointer(layer.attention_norm),
        qkv=_linear_args(layer.qkv),
        q_norm=_pointer(layer.q_norm),
        k_norm=_pointer(layer.k_norm),
        output=_linear_args(layer.output),
        mlp_norm=_pointer(layer.mlp_norm),
        gate_up=_linear_args(layer.gate_up),
        down=_linear_args(layer.down),
    )


def _model_args(packed_model: PackedModel, layers: int) -> ModelArgs:
    table = packed_model.embedding
    return ModelArgs(
        num_layers=len(packed_model.layers),
        hidden=packed_model.hidden_size,
        intermediate=packed_model.intermediate_size,
        heads=packed_model.num_heads,
        kv_heads=packed_model.num_kv_heads,
        head_dim=packed_model.head_dim,
        eps=packed_model.eps,
        scale=packed_model.scale,
        rope=packed_model.rope.data_ptr(),
        embedding=table.data_ptr() if isinstance(table, Tensor) else None,
        norm=packed_model.norm.data_ptr(),
        head=_linear_args(packed_model.head),
        layers=layers,
    )
