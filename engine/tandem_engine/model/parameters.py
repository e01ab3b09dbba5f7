"""A decoder's parameters, and where each of them stands in a Hugging Face checkpoint.

Projections that read the same input are one matrix here, because one large product is faster than
several small ones: Q, K and V, and the gate and up projections of the feed-forward layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem_engine.model.config import DecoderConfig
from tandem_engine.weights.load import Part


@dataclass(frozen=True, slots=True)
class Linear:
    """x @ weight.T + bias."""

    weight: Tensor
    """[out, in]."""
    bias: Tensor | None
    """[out]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One block: attention, then the feed-forward layer, each after a norm."""

    attention_norm: Tensor
    """[hidden]."""
    qkv: Linear
    """[(heads + 2 * kv_heads) * head_dim, hidden]: all heads of Q, then of K, then of V."""
    q_norm: Tensor | None
    """[head_dim]."""
    k_norm: Tensor | None
    """[head_dim]."""
    output: Linear
    """[hidden, heads * head_dim]."""
    mlp_norm: Tensor
    """[hidden]."""
    gate_up: Linear
    """[2 * intermediate, hidden]: gate, then up."""
    down: Linear
    """[hidden, intermediate]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """All of a decoder."""

    embedding: Tensor
    """[vocab, hidden]."""
    layers: tuple[Layer, ...]
    norm: Tensor
    """[hidden]."""
    head: Tensor
    """[vocab, hidden]; the embedding itself when the two are tied."""


def allocate_parameters(
    config: DecoderConfig, *, dtype: torch.dtype, device: torch.device | str
) -> Parameters:
    """Parameters of the right shapes, not yet filled."""

    def tensor(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    def linear(rows: int, columns: int, *, bias: bool) -> Linear:
        return Linear(tensor(rows, columns), tensor(rows) if bias else None)

    hidden, intermediate = config.hidden_size, config.intermediate_size
    query_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    layers = tuple(
        Layer(
            attention_norm=tensor(hidden),
            qkv=linear(query_width + 2 * kv_width, hidden, bias=config.qkv_bias),
            q_norm=tensor(config.head_dim) if config.qk_norm else None,
            k_norm=tensor(config.head_dim) if config.qk_norm else None,
            output=linear(hidden, query_width, bias=config.output_bias),
            mlp_norm=tensor(hidden),
            gate_up=linear(2 * intermediate, hidden, bias=config.mlp_bias),
            down=linear(hidden, intermediate, bias=config.mlp_bias),
        )
        for _ in range(config.num_layers)
    )
    embedding = tensor(config.vocab_size, hidden)
    return Parameters(
        embedding=embedding,
        layers=layers,
        norm=tensor(hidden),
        head=embedding if config.tie_word_embeddings else tensor(config.vocab_size, hidden),
    )


def checkpoint_parts(config: DecoderConfig, parameters: Parameters) -> Iterator[Part]:
    """Every tensor that the checkpoint must hold, with the (part of the) parameter it fills."""
    yield Part("model.embed_tokens.weight", parameters.embedding)
    for number, layer in enumerate(parameters.layers):
        yield from _layer_parts(config, layer, f"model.layers.{number}")
    yield Part("model.norm.weight", parameters.norm)
    if not config.tie_word_embeddings:
        yield Part("lm_head.weight", parameters.head)


def is_harmless(config: DecoderConfig, name: str) -> bool:
    """Whether a tensor that fills no parameter may stand in a checkpoint all the same."""
    # Frequencies follow from config.json; older checkpoints hold them once per layer.
    return name.endswith(".rotary_emb.inv_freq") or (
        config.tie_word_embeddings and name == "lm_head.weight"
    )


def _layer_parts(config: DecoderConfig, layer: Layer, prefix: str) -> Iterator[Part]:
    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    yield Part(f"{prefix}.input_layernorm.weight", layer.attention_norm)
    kv_width = config.num_kv_heads * config.head_dim
    widths = [config.num_heads * config.head_dim, kv_width, kv_width]
    qkv = tuple(f"{attention}.{name}_proj" for name in ("q", "k", "v"))
    yield from _linear_parts(layer.qkv, qkv, widths)
    if layer.q_norm is not None and layer.k_norm is not None:
        yield Part(f"{attention}.q_norm.weight", layer.q_norm)
        yield Part(f"{attention}.k_norm.weight", layer.k_norm)
    yield from _linear_parts(layer.output, (f"{attention}.o_proj",), [config.hidden_size])
    yield Part(f"{prefix}.post_attention_layernorm.weight", layer.mlp_norm)
    gate_up = (f"{mlp}.gate_proj", f"{mlp}.up_proj")
    yield from _linear_parts(layer.gate_up, gate_up, [config.intermediate_size] * 2)
    yield from _linear_parts(layer.down, (f"{mlp}.down_proj",), [config.hidden_size])


def _linear_parts(linear: Linear, names: tuple[str, ...], widths: list[int]) -> Iterator[Part]:
    """The rows of one fused projection, by the projections that it is made of."""
    for name, rows in zip(names, torch.split(linear.weight, widths), strict=True):
        yield Part(f"{name}.weight", rows)
    if linear.bias is not None:
        for name, entries in zip(names, torch.split(linear.bias, widths), strict=True):
            yield Part(f"{name}.bias", entries)
