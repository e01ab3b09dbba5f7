"""Linear layers in 8 bits, from what a checkpoint holds of them to what kernels multiply with."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.errors import CheckpointError
from tandem_engine.device.packed_model import PackedLinear
from tandem_engine.device.packing import Int8Packing, PackingKernels
from tandem_engine.quantization.int8 import SHIFT, StaticInput, quantize_rows
from tandem_engine.quantization.scheme import Format, LinearKind, Scheme
from tandem_engine.weights.checkpoint import FLOATS
from tandem_engine.weights.fill import Part

_INT8: Final = ("I8",)
_LOWEST, _HIGHEST = -128, 127


@dataclass(frozen=True, slots=True)
class _StaticTensors:
    """The fields of a checkpoint on inputs with one scale; see `quantization.modelslim`."""

    input_scales: Tensor
    """[projections] float32."""
    input_offsets: Tensor
    """[projections] float32."""
    quant_bias: Tensor
    """[out] int32."""
    sums: Tensor
    """[out] int64: of each row of the weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizedLinear:
    """Projections that read the same input, as one matrix, with their scales side by side."""

    names: tuple[str, ...]
    """Of the projections in the checkpoint, in the order of their rows."""
    widths: tuple[int, ...]
    """Rows of each."""
    inputs: int
    format: Format
    packing: Int8Packing
    """Takes the rows of all."""
    scales: Tensor
    """[out] float32."""
    bias: Tensor | None
    """[out] float32; None with a static input, where it is in quant_bias."""
    static: _StaticTensors | None
    zeros: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that the checkpoint may hold, if all of their values are 0."""
    skipped: set[str] = field(default_factory=set)
    """Tensors that the checkpoint may hold and that are redundant."""

    @property
    def num_bytes(self) -> int:
        """Of the weight and its scales."""
        return sum(self.widths) * self.inputs + self.scales.nbytes

    def parts(self) -> Iterator[Part]:
        """Every tensor of the checkpoint that fills it."""
        low = 0
        for number, (name, width) in enumerate(zip(self.names, self.widths, strict=True)):
            rows = slice(low, low + width)
            low += width
            yield from self._weight_parts(name, rows)
            if self.bias is not None:
                yield Part.copy(f"{name}.bias", self.bias[rows])
            if self.static is not None:
                yield from self._static_parts(self.static, name, number, rows)

    def expect_zeros(self, name: str, count: int, *, is_column: bool = False) -> Part:
        """A tensor that must be all zeros, which `finished` checks."""
        # Checked later: an error that is raised while the file is open would hold its memory.
        self.zeros[name] = torch.empty(count, device=self.scales.device)
        take = partial(_fill, self.zeros[name])
        return Part(name, (count,), take, (*FLOATS, *_INT8), is_column)

    def finished(self) -> PackedLinear:
        """The layer as kernels take it, once all parts are filled.

        Raises:
            CheckpointError: A scale or an offset is not one that can be computed with.
        """
        for name, tensor in self.zeros.items():
            if tensor.any():
                raise CheckpointError(
                    f"the tensor {name} has values other than 0, which are not computed; supported "
                    "are weights without offsets, and norms without a bias"
                )
        if not bool((self.scales.isfinite() & (self.scales != 0)).all()):
            raise CheckpointError(f"the scales of {self.names[0]} are not all numbers other than 0")
        if self.static is None:
            return self.packing.finish(self.scales, self.bias, None)
        scale, offset = self._shared_input(self.static)
        # The sum that kernels compute leaves the offset out: it comes back here, exactly.
        sums = self.static.quant_bias + offset * self.static.sums
        bias = sums.double() * self.scales.double()
        return self.packing.finish(self.scales, bias.float(), StaticInput(scale, SHIFT + offset))

    def _weight_parts(self, name: str, rows: slice) -> Iterator[Part]:
        shape = (rows.stop - rows.start, self.inputs)
        if self.format is Format.AT_LOAD:
            yield Part(f"{name}.weight", shape, partial(self._quantize, rows))
            return
        yield Part(f"{name}.weight", shape, partial(self._put, rows), _INT8)
        if self.static is not None:
            return
        take = partial(_fill, self.scales[rows])
        yield Part(f"{name}.weight_scale", shape[:1], take, is_column=True)
        if self.format is Format.MODELSLIM:
            yield self.expect_zeros(f"{name}.weight_offset", shape[0], is_column=True)

    def _put(self, rows: slice, values: Tensor) -> None:
        self.packing.put(rows.start, values)
        if self.static is not None:
            self.static.sums[rows] = values.sum(dim=1, dtype=torch.int64)

    def _quantize(self, rows: slice, weight: Tensor) -> None:
        values = torch.empty(weight.shape, dtype=torch.int8)
        quantize_rows(weight, values=values, scales=self.scales[rows])
        self.packing.put(rows.start, values)

    def _static_parts(
        self, static: _StaticTensors, name: str, number: int, rows: slice
    ) -> Iterator[Part]:
        one = slice(number, number + 1)
        yield Part.copy(f"{name}.input_scale", static.input_scales[one])
        either = (*FLOATS, *_INT8)
        yield Part.copy(f"{name}.input_offset", static.input_offsets[one], either)
        yield Part.copy(f"{name}.quant_bias", static.quant_bias[rows], ("I32",))
        scales = self.scales[rows]
        take = partial(_fill_deq_scale, scales)
        yield Part(f"{name}.deq_scale", tuple(scales.shape), take, ("F32", "I64"))

    def _shared_input(self, static: _StaticTensors) -> tuple[float, int]:
        for what, found in (("scale", static.input_scales), ("offset", static.input_offsets)):
            if not bool((found == found[0]).all()):
                raise CheckpointError(
                    f"the tensors {', '.join(f'{name}.input_{what}' for name in self.names)} are "
                    f"{', '.join(map(str, found.tolist()))}; these layers read the same input and "
                    "are computed as one, so they must be equal"
                )
        scale, offset = float(static.input_scales[0]), float(static.input_offsets[0])
        if not 0 < scale < float("inf"):
            raise CheckpointError(f"{self.names[0]}.input_scale is {scale}, not above 0")
        if not (offset.is_integer() and _LOWEST <= offset <= _HIGHEST):
            raise CheckpointError(
                f"{self.names[0]}.input_offset is {offset}, "
                f"not a whole number from {_LOWEST} to {_HIGHEST}"
            )
        return scale, int(offset)


def common_kind(scheme: Scheme, names: Sequence[str]) -> LinearKind:
    """The kind of projections that are computed as one.

    Raises:
        CheckpointError: They are of several.
    """
    kinds = {name: scheme.kind_of(name) for name in names}
    if len(set(kinds.values())) > 1:
        raise CheckpointError(
            f"{', '.join(f'{name} is {kind}' for name, kind in kinds.items())}; these layers read "
            "the same input and are computed as one, so they must be of one kind"
        )
    return kinds[names[0]]


def allocate_quantized(
    scheme: Scheme,
    kind: LinearKind,
    names: tuple[str, ...],
    widths: Sequence[int],
    inputs: int,
    *,
    bias: bool,
    device: torch.device | str,
    kernels: PackingKernels,
) -> QuantizedLinear:
    """One that is not yet filled; `kind` is not FLOAT."""
    rows = sum(widths)
    is_static = kind is LinearKind.STATIC
    static = _StaticTensors(
        input_scales=torch.empty(len(names)),
        input_offsets=torch.empty(len(names)),
        quant_bias=torch.empty(rows, dtype=torch.int32, device=device),
        sums=torch.empty(rows, dtype=torch.int64, device=device),
    )
    return QuantizedLinear(
        names=names,
        widths=tuple(widths),
        inputs=inputs,
        format=scheme.format,
        packing=kernels.packing_int8(rows, inputs, device, is_static=is_static),
        scales=torch.empty(rows, device=device),
        bias=torch.empty(rows, device=device) if bias and not is_static else None,
        static=static if is_static else None,
        # Of a static layer, quant_bias and deq_scale hold what these say.
        skipped={
            f"{name}.{what}"
            for name in names
            for what in ("weight_scale", "weight_offset", *(["bias"] if bias else []))
            if is_static
        },
    )


def norm_parts(
    name: str, norm: Tensor, reader: QuantizedLinear, held: Collection[str]
) -> Iterator[Part]:
    """A norm whose output `reader` reads, in a checkpoint that holds the tensors `held`.

    msModelSlim moves outliers from activations to weights. The norm that undoes it is then
    NAME.module.weight, NAME.weight the one from before; a bias of the norm is written, too.
    """
    if f"{name}.module.weight" in held:
        yield Part.copy(f"{name}.module.weight", norm)
        reader.skipped.add(f"{name}.weight")
    else:
        yield Part.copy(f"{name}.weight", norm)
    for bias in (f"{name}.module.bias", f"{name}.bias"):
        if bias in held:
            yield reader.expect_zeros(bias, len(norm))


def _fill(destination: Tensor, tensor: Tensor) -> None:
    destination.copy_(tensor.reshape(destination.shape))


def _fill_deq_scale(destination: Tensor, tensor: Tensor) -> None:
    if tensor.dtype == torch.int64:
        tensor = tensor.to(torch.int32).view(torch.float32)
    destination.copy_(tensor)
