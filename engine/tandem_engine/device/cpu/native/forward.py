"""The whole forward pass as one call into the library, or a stage of it: see forward.h."""

from collections.abc import Callable, Iterator
from ctypes import addressof, byref
from enum import IntEnum
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from tandem_engine.device import kv_int8
from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.cpu.native.arena import ActivationArena
from tandem_engine.device.cpu.native.arguments import rows_args, token_slots_args
from tandem_engine.device.cpu.native.library import (
    WEIGHT_KINDS,
    LayerArgs,
    Library,
    LinearArgs,
    ModelArgs,
    StageArgs,
    StepArgs,
    computed_in,
)
from tandem_engine.device.cpu.native.linear import Int8PanelLinear
from tandem_engine.device.cpu.native.widths import (
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    InputWidth,
    unpacked_reason,
)
from tandem_engine.device.packed_model import PackedLayer, PackedLinear, PackedModel
from tandem_engine.device.reference.int8_linear import Int8Linear

_IN_8_BITS: Final = (Int8PanelLinear, Int8Linear)


def unsupported_reason(packed_model: PackedModel) -> str | None:
    """Reason for which the library does not compute all of it; None: it does."""
    if packed_model.dtype not in WEIGHT_KINDS:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in WEIGHT_KINDS)
        return f"the dtype is {str(packed_model.dtype).removeprefix('torch.')}, not one of {kinds}"
    return unpacked_reason(_widths(packed_model))


class NativeForward:
    """Implements `packed_model.ForwardPass`.

    One thread at a time may call it: activations lie in memory that is kept from step to step.
    Several steps that are computed stage by stage may be under way at once, each with its own.

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
        self._library = library
        self._forward = library("forward", packed_model.dtype)
        self._count_activations = library("activations", packed_model.dtype)
        self._arena = ActivationArena(computed_in(packed_model.dtype))

    def __call__(
        self,
        token_ids: Tensor,
        cache_blocks: Tensor,
        metadata: AttentionMetadata,
        logits_rows: Tensor,
    ) -> Tensor:
        """Compute one step."""
        num_tokens = metadata.num_tokens
        logits = torch.empty(len(logits_rows), self._network.vocab_size)
        step = self._step_args(token_ids, cache_blocks, metadata, logits_rows, num_rows=num_tokens)
        activations = self._arena.take(self._num_activations(num_tokens))
        step.activations, step.logits = activations.data_ptr(), logits.data_ptr()
        self._forward(byref(self._model), byref(step))
        self._arena.give_back(activations)
        return logits

    def reserve(self, num_rows: int) -> None:
        """Have room for the activations of so many rows, of all steps that are under way."""
        self._arena.reserve(self._num_activations(num_rows))

    def stages(
        self,
        token_ids: Tensor,
        cache_blocks: Tensor,
        metadata: AttentionMetadata,
        logits_rows: Tensor,
        *,
        num_rows: int,
    ) -> "NativeStages":
        """Begin one step, each stage of which is one call."""
        step = self._step_args(token_ids, cache_blocks, metadata, logits_rows, num_rows=num_rows)
        activations = self._arena.take(self._num_activations(num_rows))
        step.activations = activations.data_ptr()
        return NativeStages(
            self._library,
            self._network,
            self._model,
            step,
            activations=activations,
            kept=(token_ids, cache_blocks, metadata, logits_rows),
            give_back=self._arena.give_back,
        )

    def _step_args(
        self,
        token_ids: Tensor,
        cache_blocks: Tensor,
        metadata: AttentionMetadata,
        logits_rows: Tensor,
        *,
        num_rows: int,
    ) -> StepArgs:
        """Of a step, without the memory for its results."""
        is_int8 = kv_int8.is_int8(cache_blocks)
        assert is_int8 or cache_blocks.dtype == self._network.dtype, "this is a bug"  # noqa: S101
        return StepArgs(
            slots=token_slots_args(metadata),
            rows=rows_args(metadata),
            token_ids=token_ids.data_ptr(),
            logits_rows=logits_rows.data_ptr(),
            num_logits_rows=len(logits_rows),
            cache=cache_blocks.data_ptr(),
            num_blocks=cache_blocks.shape[2],
            block_size=metadata.block_size,
            is_cache_int8=is_int8,
            num_rows=num_rows,
        )

    def _num_activations(self, num_rows: int) -> int:
        count: int = self._count_activations(byref(self._model), num_rows)
        return count


class _Kind(IntEnum):
    """`Stage::Kind` of forward.h."""

    EMBED = 0
    ATTENTION_NORM = 1
    ATTENTION = 2
    MLP_NORM = 3
    MLP = 4
    LEAVE = 5
    LOGITS = 6


class NativeStages:
    """Implements `packed_model.StepStages`: each method is one call into the library.

    Args:
        library: The kernels.
        packed_model: The rank's part of a decoder.
        model: The same for the library.
        step: The step for the library; its activations have room for its rows.
        activations: Where it points to.
        kept: All else that it points to, to be kept until `close`.
        give_back: Called with `activations` then.
    """

    def __init__(
        self,
        library: Library,
        packed_model: PackedModel,
        model: ModelArgs,
        step: StepArgs,
        *,
        activations: Tensor,
        kept: tuple[object, ...],
        give_back: Callable[[Tensor], None],
    ) -> None:
        self._packed_model, self._model, self._step = packed_model, model, step
        self._activations, self._kept, self._give_back = activations, kept, give_back
        self._run = library("stage", packed_model.dtype)
        self._end = library("end", packed_model.dtype)
        # `residual` and `x` of Activations in forward.h.
        shape = (2, step.num_rows, packed_model.hidden_size)
        self._x = activations[: 2 * shape[1] * shape[2]].view(shape)[1]
        self._hidden = self._x
        self._num_logits = int(step.num_logits_rows)
        self._logits = torch.empty(0, packed_model.vocab_size)
        self._stage = StageArgs()
        self._at = byref(self._stage)
        self._forward: int | None = library("begin", packed_model.dtype)(byref(model), byref(step))

    @property
    def hidden(self) -> Tensor:
        """See `StepStages`, as for all methods."""
        return self._hidden

    def embed(self) -> None:
        """Look up the tokens of this rank."""
        self._compute(_Kind.EMBED)
        num_tokens = int(self._step.slots.tokens)
        if num_tokens < len(self._x):
            self._x[num_tokens:].zero_()

    def resume(self, hidden: Tensor, rows: slice | None) -> None:
        """Go on with another rank's hidden states."""
        if rows is None:
            self._x.copy_(hidden)
        else:
            self._x[rows].copy_(hidden)

    def attention_norm(self, layer: int, rows: slice) -> None:
        """Norm own rows."""
        self._compute(_Kind.ATTENTION_NORM, layer, rows=rows)
        self._stage.has_residual = True

    def mlp_norm(self, layer: int, rows: slice) -> None:
        """Norm own rows."""
        self._compute(_Kind.MLP_NORM, layer, rows=rows)
        self._stage.has_residual = True

    def attention(self, layer: int, *, is_normed: bool) -> None:
        """Attention and output projection."""
        self._compute(_Kind.ATTENTION, layer, is_normed=is_normed)
        self._stage.has_residual = True
        is_last = layer == len(self._packed_model.layers) - 1
        if is_last and self._packed_model.head is not None:
            self._hidden = self._x[: self._num_logits]

    def mlp(self, layer: int, *, is_normed: bool) -> None:
        """Feed-forward layer."""
        self._compute(_Kind.MLP, layer, is_normed=is_normed)
        self._stage.has_residual = True

    def leave(self, rows: slice | None) -> None:
        """Add the residual."""
        self._compute(_Kind.LEAVE, rows=rows or slice(0, len(self._x)))
        self._stage.has_residual = False

    def logits(self, rows: slice) -> Tensor:
        """The head's columns of this rank."""
        count = rows.stop - rows.start
        if count != len(self._logits):
            self._logits = torch.empty(count, self._packed_model.vocab_size)
        self._step.logits = self._logits.data_ptr()
        self._compute(_Kind.LOGITS, rows=rows)
        return self._logits[:count]

    def close(self) -> None:
        """Give back the memory of activations."""
        if self._forward is not None:
            self._end(self._forward)
            self._forward = None
            self._give_back(self._activations)

    def _compute(
        self, kind: _Kind, layer: int = 0, *, is_normed: bool = False, rows: slice | None = None
    ) -> None:
        assert self._forward is not None, "the step is closed; this is a bug"  # noqa: S101
        stage = self._stage
        stage.kind, stage.layer, stage.is_normed = kind, layer, is_normed
        if rows is not None:
            stage.first_row, stage.rows = rows.start, rows.stop - rows.start
        self._run(self._forward, self._at)


def _widths(packed_model: PackedModel) -> Iterator[InputWidth]:
    """Inputs of all linear layers."""

    def width(name: str, inputs: int, linear: PackedLinear) -> InputWidth:
        return InputWidth(name, inputs, isinstance(linear, _IN_8_BITS))

    hidden = partial(width, HIDDEN, packed_model.hidden_size)
    heads = packed_model.num_heads * packed_model.head_dim
    for layer in packed_model.layers:
        yield hidden(layer.qkv)
        yield width(HEADS, heads, layer.output)
        yield hidden(layer.gate_up)
        yield width(INTERMEDIATE, packed_model.intermediate_size, layer.down)
    if packed_model.head is not None:
        yield hidden(packed_model.head)


def _layer_args(layer: PackedLayer) -> LayerArgs:
    """The fields of `LayerArgs`, which have the names of a layer's."""
    pack = {LinearArgs: _linear_args}
    return LayerArgs(
        **{
            name: pack.get(kind, _pointer)(getattr(layer, name))
            for name, kind in LayerArgs._fields_
        }
    )


def _linear_args(linear: Any) -> LinearArgs:
    if isinstance(linear, Int8PanelLinear):
        return LinearArgs(in_int8=linear.args)
    return LinearArgs(in_float=linear.args)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _model_args(packed_model: PackedModel, layers: int) -> ModelArgs:
    table, vocab = packed_model.embedding, packed_model.vocab
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
        norm=_pointer(packed_model.norm),
        head=LinearArgs() if packed_model.head is None else _linear_args(packed_model.head),
        layers=layers,
        first_token=0 if vocab is None else vocab.start,
        num_tokens=packed_model.vocab_size if vocab is None else len(vocab),
    )
