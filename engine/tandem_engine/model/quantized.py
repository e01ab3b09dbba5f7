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
from tandem_engine.model.projection import Projection, row_slices
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

    projections: tuple[Projection, ...]
    """In the order of their rows."""
    format: Format
    packing: Int8Packing
    """Takes the rows of all."""
    scales: Tensor
    """[out] float32."""
    bias: Tensor | None
    """[out] float32; None with a static input, where it is in quant_bias."""
    adds_bias: bool
    """False where another rank adds the bias to the sum."""
    static: _StaticTensors | None
    zeros: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that the checkpoint may hold, if all of their values are 0."""
    skipped: set[str] = field(default_factory=set)
    """Tensors that the checkpoint may hold and that are redundant."""

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
        return len(self.scales)

    @property
    def num_bytes(self) -> int:
        """Of the weight and its scales."""
        return len(self.scales) * self.inputs + self.scales.nbytes

    def parts(self) -> Iterator[Part]:
        """Every tensor of the checkpoint that fills it."""
        slices = row_slices(self.projections)
        for number, (projection, rows) in enumerate(zip(self.projections, slices, strict=True)):
            yield from self._weight_parts(projection, rows)
            if self.bias is not None:
                yield Part.copy_rows(
                    f"{projection.name}.bias", self.bias[rows], projection.rows, projection.outputs
                )
            if self.static is not None:
                yield from self._static_parts(self.static, projection, number, rows)

    def expect_zeros(
        self, name: str, count: int, *, rows: range | None = None, is_column: bool = False
    ) -> Part:
        """A tensor of `count` values of which those of `rows` must be 0; `finished` checks it."""
        # Checked later: an error that is raised while the file is open would hold its memory.
        taken = count if rows is None else len(rows)
        self.zeros[name] = torch.empty(taken, device=self.scales.device)
        take = partial(_fill, self.zeros[name])
        return Part(name, (count,), take, (*FLOATS, *_INT8), is_column, rows)

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
        self._pad()
        if not bool((self.scales.isfinite() & (self.scales != 0)).all()):
            raise CheckpointError(f"the scales of {self.names[0]} are not all numbers other than 0")
        if self.static is None:
            return self.packing.finish(self.scales, self.bias, None)
        scale, offset = self._shared_input(self.static)
        static = StaticInput(scale, SHIFT + offset)
        if not self.adds_bias:
            return self.packing.finish(self.scales, None, static)
        # The sum that kernels compute leaves the offset out: it comes back here, exactly.
        sums = self.static.quant_bias + offset * self.static.sums
        bias = sums.double() * self.scales.double()
        return self.packing.finish(self.scales, bias.float(), static)

    def _pad(self) -> None:
        """Fill the rows behind those of the projections, which make all ranks' results as wide."""
        first = row_slices(self.projections)[-1].stop
        count = len(self.scales) - first
        if not count:
            return
        self.scales[first:] = 1
        if self.bias is not None:
            self.bias[first:] = 0
        if self.static is not None:
            self.static.quant_bias[first:] = 0
            self.static.sums[first:] = 0
        self.packing.put(first, torch.zeros(count, self.inputs, dtype=torch.int8))

    def _weight_parts(self, projection: Projection, rows: slice) -> Iterator[Part]:
        weight, columns = (
            f"{projection.name}.weight",
            projection.columns if projection.is_row_parallel else None,
        )
        if self.format is Format.AT_LOAD:
            # Scales of row-parallel weights are of their own columns, which alone are read: what
            # is added up are results in float.
            quantize = partial(self._quantize, rows)
            yield Part(weight, projection.shape, quantize, rows=projection.rows, columns=columns)
            return
        if self.static is not None:
            # The rank that adds the bias needs the sums of whole rows.
            read = None if self.adds_bias else columns
            put = partial(self._put_static, rows, columns)
            yield Part(weight, projection.shape, put, _INT8, rows=projection.rows, columns=read)
            return
        put_rows = partial(self.packing.put, rows.start)
        yield Part(weight, projection.shape, put_rows, _INT8, rows=projection.rows, columns=columns)
        take = partial(_fill, self.scales[rows])
        scale = f"{projection.name}.weight_scale"
        yield Part(scale, (projection.outputs,), take, is_column=True, rows=projection.rows)
        if self.format is Format.MODELSLIM:
            offset = f"{projection.name}.weight_offset"
            yield self.expect_zeros(
                offset, projection.outputs, rows=projection.rows, is_column=True
            )

    def _put_static(self, rows: slice, columns: range | None, values: Tensor) -> None:
        if self.static is not None and self.adds_bias:
            self.static.sums[rows] = values.sum(dim=1, dtype=torch.int64)
            if columns is not None:
                values = values[:, columns.start : columns.stop]
        self.packing.put(rows.start, values)

    def _quantize(self, rows: slice, weight: Tensor) -> None:
        values = torch.empty(weight.shape, dtype=torch.int8)
        quantize_rows(weight, values=values, scales=self.scales[rows])
        self.packing.put(rows.start, values)

    def _static_parts(
        self, static: _StaticTensors, projection: Projection, number: int, rows: slice
    ) -> Iterator[Part]:
        name, entry = projection.name, slice(number, number + 1)
        yield Part.copy(f"{name}.input_scale", static.input_scales[entry])
        either = (*FLOATS, *_INT8)
        yield Part.copy(f"{name}.input_offset", static.input_offsets[entry], either)
        if self.adds_bias:
            bias = static.quant_bias[rows]
            yield Part.copy_rows(
                f"{name}.quant_bias", bias, projection.rows, projection.outputs, ("I32",)
            )
        take = partial(_fill_deq_scale, self.scales[rows])
        yield Part(
            f"{name}.deq_scale", (projection.outputs,), take, ("F32", "I64"), rows=projection.rows
        )

    def _shared_input(self, static: _StaticTensors) -> tuple[float, int]:
        for what, values in (("scale", static.input_scales), ("offset", static.input_offsets)):
            if not bool((values == values[0]).all()):
                raise CheckpointError(
                    f"the tensors {', '.join(f'{name}.input_{what}' for name in self.names)} are "
                    f"{', '.join(map(str, values.tolist()))}; these layers read the same input and "
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
    projections: tuple[Projection, ...],
    *,
    padding: int,
    bias: bool,
    adds_bias: bool,
    device: torch.device | str,
    kernels: PackingKernels,
) -> QuantizedLinear:
    """One that is not yet filled; `kind` is not FLOAT. For the others see `parameters.Linear`."""
    names = [projection.name for projection in projections]
    inputs = len(projections[0].columns)
    rows = row_slices(projections)[-1].stop + padding
    is_static = kind is LinearKind.STATIC
    static = _StaticTensors(
        input_scales=torch.empty(len(names)),
        input_offsets=torch.empty(len(names)),
        quant_bias=torch.empty(rows, dtype=torch.int32, device=device),
        sums=torch.empty(rows, dtype=torch.int64, device=device),
    )
    return QuantizedLinear(
        projections=projections,
        adds_bias=adds_bias,
        format=scheme.format,
        packing=kernels.packing_int8(rows, inputs, device, is_static=is_static),
        scales=torch.empty(rows, device=device),
        bias=torch.empty(rows, device=device) if bias and adds_bias and not is_static else None,
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
