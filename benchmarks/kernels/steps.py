"""Whole forward steps: how long they take, and how much of it are products."""

from dataclasses import dataclass

import torch

from benchmarks.kernels.measure import Stopwatch, Work
from benchmarks.kernels.shapes import Batch, make_cache, make_decoder, random_tensor
from tandem_engine.device.runtime import Kernels
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.decoder import Decoder
from tandem_engine.quantization.scheme import AT_LOAD_SCHEME


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One batch on both kinds of kernels, in seconds."""

    model: str
    batch: Batch
    native: float
    native_gemm: float
    """The products of the step alone."""
    native_int8: float
    """The same step in W8A8."""
    reference: float | None
    """None: left out."""


def measure_steps(
    name: str,
    config: DecoderConfig,
    batches: list[Batch],
    *,
    watch: Stopwatch,
    native: Kernels,
    reference: Kernels | None,
) -> list[StepTimes]:
    """The batches on a model with random weights."""
    decoders = {
        "native": make_decoder(config, native),
        "w8a8": make_decoder(config, native, AT_LOAD_SCHEME),
    }
    if reference is not None:
        decoders["reference"] = make_decoder(config, reference)
    return [_measure(name, batch, decoders, watch, native) for batch in batches]


def _measure(
    name: str, batch: Batch, decoders: dict[str, Decoder], watch: Stopwatch, native: Kernels
) -> StepTimes:
    works = {kind: _forward(decoder, batch) for kind, decoder in decoders.items()}
    works["gemm"] = _products(decoders["native"], batch, native)
    with torch.inference_mode():
        taken = watch.alternate(works)
    return StepTimes(
        model=name,
        batch=batch,
        native=taken["native"],
        native_gemm=taken["gemm"],
        native_int8=taken["w8a8"],
        reference=taken.get("reference"),
    )


def _forward(decoder: Decoder, batch: Batch) -> Work:
    cache = make_cache(decoder.config, batch)
    tokens = torch.randint(0, decoder.config.vocab_size, (batch.num_tokens,))
    last = torch.tensor([new for new, _ in batch.rows]).cumsum(0) - 1
    return lambda: decoder.forward(tokens, cache, batch.layout(), logits_rows=last)


def _products(decoder: Decoder, batch: Batch, kernels: Kernels) -> Work:
    """Every linear layer of the step once, on rows of random numbers."""
    config, packed_model = decoder.config, decoder.packed_model
    wide = config.num_heads * config.head_dim
    rows = {
        width: random_tensor(batch.num_tokens, width)
        for width in (config.hidden_size, wide, config.intermediate_size)
    }
    last_rows = random_tensor(len(batch.rows), config.hidden_size)
    head = packed_model.head
    assert head is not None, "one rank has all of the model; this is a bug"  # noqa: S101

    def work() -> None:
        for layer in packed_model.layers:
            kernels.linear(rows[config.hidden_size], layer.qkv)
            kernels.linear(rows[wide], layer.output)
            kernels.linear(rows[config.hidden_size], layer.gate_up)
            kernels.linear(rows[config.intermediate_size], layer.down)
        kernels.linear(last_rows, head)

    return work


def weight_bytes(config: DecoderConfig, layers: torch.dtype = torch.bfloat16) -> int:
    """Bytes that a step must read of the model at least; its head is in bfloat16 also in W8A8."""
    head = config.vocab_size * config.hidden_size
    of_layers = num_multiplied(config) - head
    return layers.itemsize * of_layers + torch.bfloat16.itemsize * head


def num_multiplied(config: DecoderConfig) -> int:
    """Weights that every token of a step goes through, the head's included."""
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    of_layer = config.hidden_size * (
        qkv + config.num_heads * config.head_dim + 3 * config.intermediate_size
    )
    return config.num_layers * of_layer + config.vocab_size * config.hidden_size


def read_bytes(step: StepTimes, config: DecoderConfig, layers: torch.dtype = torch.bfloat16) -> int:
    """Weights and K and V that the step reads."""
    kv = 2 * config.num_layers * config.num_kv_heads * config.head_dim * torch.bfloat16.itemsize
    return weight_bytes(config, layers) + kv * step.batch.num_keys


def floor_seconds(step: StepTimes, config: DecoderConfig, *, read: float, gemm: float) -> float:
    """The least that the machine's memory and products allow, in seconds."""
    num_bytes = read_bytes(step, config)
    head = config.vocab_size * config.hidden_size
    products = step.batch.num_tokens * (num_multiplied(config) - head) + len(step.batch.rows) * head
    scores = 2 * step.batch.num_scores * config.num_layers * config.num_heads * config.head_dim
    return max(num_bytes / read, 2 * (products + scores) / gemm)
