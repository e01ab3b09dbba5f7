"""A decoder's parameters, and where each of them stands in a Hugging Face checkpoint.

Projections that read the same input are one matrix here, because one large product is faster than
several small ones: Q, K and V, and the gate and up projections of the feed-forward layer.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor

from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.device.packing import LinearPacking, PackingKernels
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.quantized import (
    QuantizedLinear,
    allocate_quantized,
    common_kind,
    norm_parts,
)
from tandem_engine.quantization.scheme import FLOAT_SCHEME, HEAD, LinearKind, Scheme
from tandem_engine.weights.fill import Part

_EMBEDDING: Final = "model.embed_tokens"


@dataclass(frozen=True, slots=True)
class Linear:
    """Projections that read the same input, as one matrix: x @ weight.T + bias."""

    names: tuple[str, ...]
    """Of the projections in the checkpoint, in the order of their rows."""
    widths: tuple[int, ...]
    """Rows of each."""
    inputs: int
    packing: LinearPacking
    """Takes the rows of all."""
    bias: Tensor | None
    """[out]."""

    def parts(self) -> Iterator[Part]:
        """Every tensor of the checkpoint that fills it."""
        first = 0
        for name, width in zip(self.names, self.widths, strict=True):
            yield Part(f"{name}.weight", (width, self.inputs), partial(self.packing.put, first))
            first += width
        if self.bias is not None:
            biases = torch.split(self.bias, list(self.widths))
            for name, entries in zip(self.names, biases, strict=True):
                yield Part.copy(f"{name}.bias", entries)

    def finished(self) -> PackedLinear:
        """The layer as kernels take it, once all parts are filled."""
        return self.packing.finish(self.bias)


AnyLinear = Linear | QuantizedLinear


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block: attention, then the feed-forward layer, each after a norm."""

    attention_norm: Tensor
    """[hidden]."""
    qkv: AnyLinear
    """[(heads + 2 * kv_heads) * head_dim, hidden]: all heads of Q, then of K, then of V."""
    q_norm: Tensor | None
    """[head_dim]."""
    k_norm: Tensor | None
    """[head_dim]."""
    output: AnyLinear
    """[hidden, heads * head_dim]."""
    mlp_norm: Tensor
    """[hidden]."""
    gate_up: AnyLinear
    """[2 * intermediate, hidden]: gate, then up."""
    down: AnyLinear
    """[hidden, intermediate]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """All of a decoder."""

    dtype: torch.dtype
    """Of the weights that are not quantised."""
    embedding: Tensor | None
    """[vocab, hidden]; None: the head, as the two are tied."""
    layers: tuple[Layer, ...]
    norm: Tensor
    """[hidden], of the type of activations, as are all norms and biases."""
    head: AnyLinear
    """[vocab, hidden]."""

    def linears(self) -> Iterator[AnyLinear]:
        """Every linear layer; not a head that is tied."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)
        if self.embedding is not None:
            yield self.head


def allocate_parameters(
    config: DecoderConfig,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    kernels: PackingKernels,
    scheme: Scheme = FLOAT_SCHEME,
) -> Parameters:
    """Parameters of the right shapes, not yet filled.

    Args:
        config: The model.
        dtype: Of the weights that are not quantised.
        device: Where they go.
        kernels: Kernels that will compute with them.
        scheme: Which layers are in 8 bits.

    Raises:
        CheckpointError: `scheme` wants something of a layer that is not computed.
    """

    def tensor(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=kernels.computed_in(dtype), device=device)

    def linear(names: tuple[str, ...], widths: list[int], inputs: int, *, bias: bool) -> AnyLinear:
        kind = common_kind(scheme, names)
        if kind is not LinearKind.FLOAT:
            return allocate_quantized(
                scheme, kind, names, widths, inputs, bias=bias, device=device, kernels=kernels
            )
        return in_float(names, widths, inputs, bias=bias)

    def in_float(names: tuple[str, ...], widths: list[int], inputs: int, *, bias: bool) -> Linear:
        outputs = sum(widths)
        packing = kernels.packing(outputs, inputs, dtype, device)
        return Linear(names, tuple(widths), inputs, packing, tensor(outputs) if bias else None)

    def layer(prefix: str) -> Layer:
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = (f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj")
        gate_up = (f"{mlp}.gate_proj", f"{mlp}.up_proj")
        return Layer(
            attention_norm=tensor(hidden),
            qkv=linear(qkv, [query_width, kv_width, kv_width], hidden, bias=config.qkv_bias),
            q_norm=tensor(config.head_dim) if config.qk_norm else None,
            k_norm=tensor(config.head_dim) if config.qk_norm else None,
            output=linear((f"{attention}.o_proj",), [hidden], query_width, bias=config.output_bias),
            mlp_norm=tensor(hidden),
            gate_up=linear(gate_up, [intermediate] * 2, hidden, bias=config.mlp_bias),
            down=linear((f"{mlp}.down_proj",), [hidden], intermediate, bias=config.mlp_bias),
        )

    hidden, intermediate = config.hidden_size, config.intermediate_size
    query_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    is_tied = config.tie_word_embeddings
    vocab = [config.vocab_size]
    table = None if is_tied else torch.empty(*vocab, hidden, dtype=dtype, device=device)
    return Parameters(
        dtype=dtype,
        embedding=table,
        layers=tuple(layer(f"model.layers.{number}") for number in range(config.num_layers)),
        norm=tensor(hidden),
        head=in_float((_EMBEDDING,), vocab, hidden, bias=False)
        if is_tied
        else linear((HEAD,), vocab, hidden, bias=False),
    )


def checkpoint_parts(parameters: Parameters, held: Collection[str] = ()) -> Iterator[Part]:
    """Every tensor that the checkpoint must hold, and what becomes of it.

    Args:
        parameters: Parameters to fill.
        held: Names of the tensors that the checkpoint holds; a quantised one has a choice.
    """
    if parameters.embedding is not None:
        yield Part.copy(f"{_EMBEDDING}.weight", parameters.embedding)
    for number, layer in enumerate(parameters.layers):
        yield from _layer_parts(layer, f"model.layers.{number}", held)
    yield Part.copy("model.norm.weight", parameters.norm)
    yield from parameters.head.parts()


def is_harmless(config: DecoderConfig, parameters: Parameters, name: str) -> bool:
    """True if a checkpoint may hold this tensor although it fills no parameter."""
    # Frequencies follow from config.json; older checkpoints hold them once per layer.
    return (
        name.endswith(".rotary_emb.inv_freq")
        or (config.tie_word_embeddings and name == f"{HEAD}.weight")
        or any(
            isinstance(linear, QuantizedLinear) and name in linear.skipped
            for linear in parameters.linears()
        )
    )


def _layer_parts(layer: Layer, prefix: str, held: Collection[str]) -> Iterator[Part]:
    attention = f"{prefix}.self_attn"
    yield from _norm_parts(f"{prefix}.input_layernorm", layer.attention_norm, layer.qkv, held)
    yield from layer.qkv.parts()
    if layer.q_norm is not None and layer.k_norm is not None:
        yield Part.copy(f"{attention}.q_norm.weight", layer.q_norm)
        yield Part.copy(f"{attention}.k_norm.weight", layer.k_norm)
    yield from layer.output.parts()
    mlp_norm = f"{prefix}.post_attention_layernorm"
    yield from _norm_parts(mlp_norm, layer.mlp_norm, layer.gate_up, held)
    yield from layer.gate_up.parts()
    yield from layer.down.parts()


def _norm_parts(
    name: str, norm: Tensor, reader: AnyLinear, held: Collection[str]
) -> Iterator[Part]:
    if isinstance(reader, QuantizedLinear):
        yield from norm_parts(name, norm, reader, held)
    else:
        yield Part.copy(f"{name}.weight", norm)
