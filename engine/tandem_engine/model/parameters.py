"""A decoder's parameters, and where each of them stands in a Hugging Face checkpoint.

Projections that read the same input are one matrix here, because one large product is faster than
several small ones: Q, K and V, and the gate and up projections of the feed-forward layer.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tandem_engine.device.packed_model import PackedLayer, PackedLinear
from tandem_engine.device.packing import LinearPacking, PackingKernels
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.layer_tensors import LayerTensor, NormTensor, by_rows, layer_tensors
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
    dtype: torch.dtype
    """Of the weight."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the projections in the checkpoint."""
        return tuple(projection.name for projection in self.projections)

    @property
    def inputs(self) -> int:
        """Columns that are multiplied here."""
        return len(self.projections[0].columns)

    @property
    def num_outputs(self) -> int:
        """Rows, those of the padding included."""
        return sum(len(projection.rows) for projection in self.projections) + self.padding

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

    @property
    def num_bytes(self) -> int:
        """Of the weight."""
        return self.num_outputs * self.inputs * self.dtype.itemsize

    def finished(self) -> PackedLinear:
        """The layer as kernels take it, once all parts are filled."""
        if self.padding:
            first = row_slices(self.projections)[-1].stop
            self.packing.put(first, torch.zeros(self.padding, self.inputs))
            if self.bias is not None:
                self.bias[first:] = 0
        return self.packing.finish(self.bias)


AnyLinear = Linear | QuantizedLinear


@dataclass(frozen=True, slots=True)
class Layer:
    """One block, as the kinds of its attention and feed-forward layer declare it."""

    declared: tuple[LayerTensor, ...]
    held: Mapping[str, Tensor | AnyLinear]
    """By their fields in `PackedLayer`."""

    def linears(self) -> Iterator[AnyLinear]:
        """Every linear layer."""
        return (each for each in self.held.values() if not isinstance(each, Tensor))

    def parts(self, names: Collection[str]) -> Iterator[Part]:
        """Every tensor of a checkpoint with these names that fills it."""
        for declared in self.declared:
            tensor = self.held[declared.field]
            if isinstance(tensor, Tensor):
                assert isinstance(declared, NormTensor), "only norms are vectors"  # noqa: S101
                yield from self._norm_parts(declared, tensor, names)
            else:
                yield from tensor.parts()

    def finished(self) -> PackedLayer:
        """The layer as kernels take it, once all parts are filled.

        Raises:
            CheckpointError: Scales or offsets of a layer in 8 bits are not computed.
        """
        packed: dict[str, Any] = {
            field: each if isinstance(each, Tensor) else each.finished()
            for field, each in self.held.items()
        }
        return PackedLayer(**packed)

    def _norm_parts(
        self, declared: NormTensor, norm: Tensor, names: Collection[str]
    ) -> Iterator[Part]:
        reader = None if declared.reader is None else self.held[declared.reader]
        if isinstance(reader, QuantizedLinear):
            yield from norm_parts(declared.name, norm, reader, names)
        else:
            yield Part.copy(f"{declared.name}.weight", norm)


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
            yield from layer.linears()
        if self.head is not None and not self.config.tie_word_embeddings:
            yield self.head

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them."""
        layers = [each for layer in self.layers for each in layer.held.values()]
        return sum(_bytes_of(each) for each in (self.embedding, *layers, self.norm, self.head))


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
    layers = tuple(map(allocator.layer, plan.layers))
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
        projection = by_rows(config, name, plan.vocab, outputs=config.vocab_size)
        padding = plan.vocab_width - len(plan.vocab)
        if config.tie_word_embeddings:
            return self._in_float((projection,), bias=False, padding=padding)
        return self._linear((projection,), bias=False, padding=padding)

    def layer(self, number: int) -> Layer:
        """One block, by its number in the model."""
        declared = tuple(layer_tensors(self._config, self._plan, number))
        return Layer(declared, {each.field: self._allocated(each) for each in declared})

    def _allocated(self, declared: LayerTensor) -> Tensor | AnyLinear:
        if isinstance(declared, NormTensor):
            return self.tensor(declared.width)
        return self._linear(declared.projections, bias=declared.has_bias, is_sum=declared.is_sum)

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
        own_bias = self.tensor(outputs) if bias else None
        return Linear(projections, packing, own_bias, padding, self._dtype)


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
    for layer in parameters.layers:
        yield from layer.parts(held)
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


def _bytes_of(held: Tensor | AnyLinear | None) -> int:
    if held is None:
        return 0
    if isinstance(held, Tensor):
        return held.nbytes
    return held.num_bytes + _bytes_of(held.bias)
