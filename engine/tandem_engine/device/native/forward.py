"""The whole forward pass as one call into the library: see forward.h."""

from collections.abc import Iterator
from ctypes import addressof, byref
from typing import Any

import torch
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.native.arguments import places_args, rows_args
from tandem_engine.device.native.library import (
    KINDS,
    Int8LayerArgs,
    LayerArgs,
    Library,
    ModelArgs,
    StepArgs,
)
from tandem_engine.device.native.linear import Int8PanelLinear, PanelLinear
from tandem_engine.device.network import Network, NetworkLayer, PackedLinear


def is_native(network: Network) -> bool:
    """Whether the library computes all of it: layers in float or all in 8 bits, head in float."""
    kinds = {type(part) for layer in network.layers for part in _linears(layer)}
    return (
        network.norm.dtype in KINDS
        and isinstance(network.head, PanelLinear)
        and kinds in ({PanelLinear}, {Int8PanelLinear})
    )


class NativeForward:
    """Implements `network.ForwardPass`.

    One thread at a time may call it: activations lie in memory that is kept from step to step.

    Args:
        library: The kernels.
        network: One for which `is_native`.
    """

    def __init__(self, library: Library, network: Network) -> None:
        self._network = network
        self._dtype = network.norm.dtype
        is_int8 = isinstance(network.layers[0].qkv, Int8PanelLinear)
        args, kind = (Int8LayerArgs, "_int8") if is_int8 else (LayerArgs, "")
        layers = (_layer_args(args, layer) for layer in network.layers)
        self._layers = (args * len(network.layers))(*layers)
        self._model = _model_args(network, addressof(self._layers))
        self._forward = library(f"forward{kind}", self._dtype)
        self._count_activations = library(f"activations{kind}", self._dtype)
        self._activations = torch.empty(0, dtype=self._dtype)

    def __call__(
        self,
        token_ids: Tensor,
        cache_blocks: Tensor,
        metadata: AttentionMetadata,
        logits_rows: Tensor,
    ) -> Tensor:
        """Compute one step."""
        logits = torch.empty(len(logits_rows), self._network.vocab_size)
        step = StepArgs(
            places=places_args(metadata),
            rows=rows_args(metadata),
            token_ids=token_ids.data_ptr(),
            wanted=logits_rows.data_ptr(),
            num_wanted=len(logits_rows),
            cache=cache_blocks.data_ptr(),
            num_blocks=cache_blocks.shape[2],
            block_size=metadata.block_size,
            is_cache_int8=kv_int8.is_int8(cache_blocks),
            activations=self._room(metadata.num_tokens).data_ptr(),
            logits=logits.data_ptr(),
        )
        self._forward(byref(self._model), byref(step))
        return logits

    def _room(self, num_tokens: int) -> Tensor:
        count = self._count_activations(byref(self._model), num_tokens)
        if count > len(self._activations):
            self._activations = torch.empty(count, dtype=self._dtype)
        return self._activations


def _linears(layer: NetworkLayer) -> Iterator[PackedLinear]:
    yield from (layer.qkv, layer.output, layer.gate_up, layer.down)


def _weight_args(linear: Any) -> Any:
    return linear.args


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _layer_args(args: Any, layer: NetworkLayer) -> Any:
    return args(
        attention_norm=_pointer(layer.attention_norm),
        qkv=_weight_args(layer.qkv),
        q_norm=_pointer(layer.q_norm),
        k_norm=_pointer(layer.k_norm),
        output=_weight_args(layer.output),
        mlp_norm=_pointer(layer.mlp_norm),
        gate_up=_weight_args(layer.gate_up),
        down=_weight_args(layer.down),
    )


def _model_args(network: Network, layers: int) -> ModelArgs:
    table = network.embedding
    return ModelArgs(
        num_layers=len(network.layers),
        hidden=network.hidden_size,
        intermediate=network.intermediate_size,
        heads=network.num_heads,
        kv_heads=network.num_kv_heads,
        head_dim=network.head_dim,
        eps=network.eps,
        scale=network.scale,
        rope=network.rope.data_ptr(),
        embedding=table.data_ptr() if isinstance(table, Tensor) else None,
        norm=network.norm.data_ptr(),
        head=_weight_args(network.head),
        layers=layers,
    )
