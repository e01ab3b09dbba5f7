"""A decoder's parameters, and where each of them stands in a Hugging Face checkpoint.

Projections that read the same input are one matrix here, because one large product is faster than
several small ones: Q, K and V, and the gate and up projections of the feed-forward layer.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.device.packing import LinearPacking, PackingKernels
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.projection import Projection, row_slices
from tandem_engine.model.quantized import (
    QuantizedLinear,
    allocate_quantized,
    common_kind,
    norm_parts,
)
from tandem_engine.parallel.plan import RankPlan, whole_plan
from tandem_engine.quantization.scheme import FLOAT_SCHEME, HEAD, LinearKind, Scheme
from tandem_engine.weights.fill import Part


@dataclass(frozen=True, slots=True)
class Linear:
    """Projections that read the same input, as one matrix: x @ weight.T + bias."""

    projections: tuple[Projection, ...]
    """In the order of their rows."""
    packing: LinearPacking
    """Takes the rows of all."""
    bias: Tensor | None
    """[out]; None also where another rank adds it to the sum."""
    padding: int
    """Rows of zeros behind them, which make all ranks' results as wide."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the projections in the checkpoint."""
        return tuple(projection.name for projection in self.projections)

    def parts(self) -> Iterator[Part]:
        """Every tensor of the checkpoint that fills it."""
        slices = row_slices(self.projections)
        for projection, rows in zip(self.projections, slices, strict=True):
            yield Part(
                f"{projection.name}.weight",
                projection.shape,
                partial(self.packing.put, rows.start),
                rows=projection.rows,
                columns=projection.columns if projection.is_row_parallel else None,
            )
        if self.bias is not None:
            for projection, rows in zip(self.projections, slices, strict=True):
                yield Part.copy_rows(
                    f"{projection.name}.bias", self.bias[rows], projection.rows, projection.outputs
                )

    def finished(self) -> PackedLinear:
        """The layer as kernels take it, once all parts are filled."""
        if self.padding:
            first, inputs = row_slices(self.projections)[-1].stop, len(self.projections[0].columns)
            self.packing.put(first, torch.zeros(self.padding, inputs))
            if self.bias is not None:
                self.bias[first:] = 0
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
    """All of a decoder that one rank holds."""

    dtype: torch.dtype
    """Of the weights that are not quantised."""
    plan: RankPlan
    config: DecoderConfig
    embedding: Tensor | None
    """[vocab, hidden]; None: the head, as the two are tied, or the first stage's."""
    layers: tuple[Layer, ...]
    norm: Tensor | None
    """[hidden], of the type of activations, as are all norms and biases; the last stage's."""
    head: AnyLinear | None
    """[vocab, hidden]; the last stage's."""

    def linears(self) -> Iterator[AnyLinear]:
        """Every linear layer; not a head that is tied."""
        for layer in self.layers:
            yield from (layer.qkv, layer.output, layer.gate_up, layer.down)
        if self.head is not None and not self.config.tie_word_embeddings:
            yield self.head


def allocate_parameters(
    config: DecoderConfig,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    kernels: PackingKernels,
    scheme: Scheme = FLOAT_SCHEME,
    plan: RankPlan | None = None,
) -> Parameters:
    """Parameters of the right shapes, not yet filled.

    Args:
        config: The model.
        dtype: Of the weights that are not quantised.
        device: Where they go.
        kernels: Kernels that will compute with them.
        scheme: Which layers are in 8 bits.
        plan: The part of the model to hold; None: all of it.

    Raises:
        CheckpointError: `scheme` wants something of a layer that is not computed.
    """
    plan = plan or whole_plan(config)
    allocator = _Allocator(config, plan, scheme, kernels, dtype=dtype, device=device)
    layers = tuple(allocator.layer(f"model.layers.{number}") for number in plan.layers)
    is_last = plan.is_last_stage
    return Parameters(
        dtype=dtype,
        plan=plan,
        config=config,
        embedding=allocator.embedding(),
        layers=layers,
        norm=allocator.tensor(config.hidden_size) if is_last else None,
        head=allocator.head() if is_last else None,
    )


class _Allocator:
    """Makes the parameters of one rank."""

    def __init__(
        self,
        config: DecoderConfig,
        plan: RankPlan,
        scheme: Scheme,
        kernels: PackingKernels,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        self._config, self._plan, self._scheme = config, plan, scheme
        self._kernels, self._dtype, self._device = kernels, dtype, device

    def tensor(self, *shape: int) -> Tensor:
        """Of the type of activations."""
        return torch.empty(shape, dtype=self._kernels.computed_in(self._dtype), device=self._device)

    def embedding(self) -> Tensor | None:
        """The table, where it is of this rank and no other copy of the head."""
        is_head = self._config.tie_word_embeddings and self._plan.is_last_stage
        if is_head or not self._plan.is_first_stage:
            return None
        shape = (len(self._plan.vocab), self._config.hidden_size)
        return torch.empty(shape, dtype=self._dtype, device=self._device)

    def head(self) -> AnyLinear:
        """The embedding where the two are tied, which is in float always."""
        plan, config = self._plan, self._config
        name = config.embedding if config.tie_word_embeddings else HEAD
        projection = self._by_rows(name, plan.vocab, outputs=config.vocab_size)
        padding = plan.vocab_width - len(plan.vocab)
        if config.tie_word_embeddings:
            return self._in_float((projection,), bias=False, padding=padding)
        return self._linear((projection,), bias=False, padding=padding)

    def layer(self, prefix: str) -> Layer:
        """One block."""
        config, plan = self._config, self._plan
        queries, intermediate = config.num_heads * config.head_dim, config.intermediate_size
        kv_width = config.num_kv_heads * config.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = (
            self._by_rows(f"{attention}.q_proj", plan.query_rows, outputs=queries),
            self._by_rows(f"{attention}.k_proj", plan.kv_rows, outputs=kv_width),
            self._by_rows(f"{attention}.v_proj", plan.kv_rows, outputs=kv_width),
        )
        gate_up = (
            self._by_rows(f"{mlp}.gate_proj", plan.intermediate, outputs=intermediate),
            self._by_rows(f"{mlp}.up_proj", plan.intermediate, outputs=intermediate),
        )
        output = self._by_columns(f"{attention}.o_proj", plan.query_rows, inputs=queries)
        down = self._by_columns(f"{mlp}.down_proj", plan.intermediate, inputs=intermediate)
        return Layer(
            attention_norm=self.tensor(config.hidden_size),
            qkv=self._linear(qkv, bias=config.qkv_bias),
            q_norm=self.tensor(config.head_dim) if config.qk_norm else None,
            k_norm=self.tensor(config.head_dim) if config.qk_norm else None,
            output=self._linear((output,), bias=config.output_bias, is_sum=True),
            mlp_norm=self.tensor(config.hidden_size),
            gate_up=self._linear(gate_up, bias=config.mlp_bias),
            down=self._linear((down,), bias=config.mlp_bias, is_sum=True),
        )

    def _linear(
        self,
        projections: tuple[Projection, ...],
        *,
        bias: bool,
        is_sum: bool = False,
        padding: int = 0,
    ) -> AnyLinear:
        """In 8 bits where the scheme says so; `is_sum`: one rank alone adds the bias."""
        kind = common_kind(self._scheme, [projection.name for projection in projections])
        adds_bias = self._plan.adds_bias or not is_sum
        if kind is LinearKind.FLOAT:
            return self._in_float(projections, bias=bias and adds_bias, padding=padding)
        return allocate_quantized(
            self._scheme,
            kind,
            projections,
            padding=padding,
            bias=bias,
            adds_bias=adds_bias,
            device=self._device,
            kernels=self._kernels,
        )

    def _in_float(
        self, projections: tuple[Projection, ...], *, bias: bool, padding: int = 0
    ) -> Linear:
        outputs = sum(len(projection.rows) for projection in projections) + padding
        inputs = len(projections[0].columns)
        packing = self._kernels.packing(outputs, inputs, self._dtype, self._device)
        return Linear(projections, packing, self.tensor(outputs) if bias else None, padding)

    def _by_rows(self, name: str, rows: range, *, outputs: int) -> Projection:
        inputs = self._config.hidden_size
        return Projection(
            name=name, outputs=outputs, inputs=inputs, rows=rows, columns=range(inputs)
        )

    def _by_columns(self, name: str, columns: range, *, inputs: int) -> Projection:
        outputs = self._config.hidden_size
        return Projection(
            name=name, outputs=outputs, inputs=inputs, rows=range(outputs), columns=columns
        )


def checkpoint_parts(parameters: Parameters, held: Collection[str] = ()) -> Iterator[Part]:
    """Every tensor that the checkpoint must hold, and what becomes of it.

    Args:
        parameters: Parameters to fill.
        held: Names of the tensors that the checkpoint holds; a quantised one has a choice.
    """
    plan = parameters.plan
    if parameters.embedding is not None:
        config, table = parameters.config, parameters.embedding
        name = f"{config.embedding}.weight"
        yield Part.copy_rows(name, table, plan.vocab, config.vocab_size)
    for number, layer in zip(plan.layers, parameters.layers, strict=True):
        yield from _layer_parts(layer, f"model.layers.{number}", held)
    if parameters.norm is not None:
        yield Part.copy("model.norm.weight", parameters.norm)
    if parameters.head is not None:
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
