"""The hand-over of two halves on the streams of one device, without other ranks.

Each half computes gated feed-forward layers. In place of a collective its tensor goes to pinned
memory of the host and back: the copy engines of a card do that while it computes, as they do when
a link carries what ranks exchange. The tensor is cleared on the way, so what is read too early,
or written too late, is another result.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Final

import torch
from rich.table import Table
from torch import Tensor

from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.result import begin, result_console, status_line, write_document
from tandem_engine.device.stream_layouts import StreamsBy, open_streams
from tandem_engine.microbatch.overlap import StepOverlap
from tandem_engine.model.stages import AllReduce, StageName
from tandem_engine.runner.hand_over import drive_halves, drive_traced
from tandem_engine.runner.step_trace import StepTrace

_SEED: Final = 20
_PROBES: Final = 5

Results = tuple[Tensor | None, Tensor | None]
"""Of the last stage of each half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardWork:
    """A step: the shape of its layers, and the rows of each half."""

    rows: int = 2048
    width: int = 4096
    intermediate: int = 14336
    num_layers: int = 16
    dtype: torch.dtype = torch.bfloat16
    clears_by_kernel: bool = False
    """Have communication need the cores that compute, as kernels of collective libraries do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFigures:
    """Medians of steps whose halves come one after the other, or overlap."""

    layout: StreamsBy
    copies: float
    """Times that each tensor goes to the host and back."""
    in_turn: StepOverlap
    halves: StepOverlap
    speedup: float
    bound: float
    """The speedup that is possible: nothing but the first stage and the last collective is bare."""
    is_equal: bool
    """Both ways gave the same result, bit by bit."""

    @property
    def share(self) -> float:
        """Communication over computation."""
        return self.in_turn.communication_s / self.in_turn.compute_s

    @property
    def overlap(self) -> float:
        """Hidden communication over what could be hidden at best."""
        return self.halves.hidden_s / self.halves.hideable_s


def run_card(
    work: CardWork, device: str, *, shares: Sequence[float], rounds: int, out: Path | None
) -> None:
    """Measure, show, write.

    Raises:
        BenchmarkError: There is no such device, or both ways gave different results.
    """
    facts = begin(out)
    benchmark = CardBenchmark(work, _opened(device))
    figures: list[CardFigures] = []
    with status_line() as note:
        for share in shares:
            copies = benchmark.copies_for(share)
            for by in StreamsBy:
                note(f"{share:.0%} communication, streams by {by}")
                figures.append(benchmark.measure(copies, by, rounds))
    result_console().print(_table_of(figures))
    if out is not None:
        derived = [
            asdict(case) | {"share": case.share, "overlap": case.overlap} for case in figures
        ]
        content = {**facts, "device": _name_of(device), "work": asdict(work), "figures": derived}
        write_document(out / "card.json", content)
    if not all(case.is_equal for case in figures):
        raise BenchmarkError("Halves that overlap gave another result than halves in turn.")


class HostCopies:
    """Collectives of a rank that is alone: each carries its tensor to the host and back."""

    def __init__(self, work: CardWork, device: torch.device, copies: float) -> None:
        self._whole, part = divmod(copies, 1.0)
        self._part_rows = round(work.rows * part)
        shape, is_card = (work.rows, work.width), device.type != "cpu"
        self._there = torch.empty(shape, dtype=work.dtype, pin_memory=is_card)
        self._empty = torch.zeros(shape, dtype=work.dtype, pin_memory=is_card)
        self._clears_by_kernel = work.clears_by_kernel

    def all_reduce(self, tensor: Tensor) -> None:
        """Have the tensor be empty until it is back."""
        for _ in range(int(self._whole)):
            self._carry(tensor)
        self._carry(tensor[: self._part_rows])

    reduce_scatter = all_gather = all_reduce

    def gather_columns(self, tensor: Tensor, num_columns: int) -> Tensor | None:
        """Refuse: no stage here ends so."""
        raise NotImplementedError(f"{tensor.shape}, {num_columns}")

    def _carry(self, tensor: Tensor) -> None:
        there, empty = self._there[: len(tensor)], self._empty[: len(tensor)]
        there.copy_(tensor, non_blocking=True)
        if self._clears_by_kernel:
            tensor.zero_()
        else:
            tensor.copy_(empty, non_blocking=True)
        tensor.copy_(there, non_blocking=True)


class CardBenchmark:
    """The layers on a device, and the two ways of computing them."""

    def __init__(self, work: CardWork, device: torch.device) -> None:
        generator = torch.Generator(device).manual_seed(_SEED)

        def drawn(rows: int, columns: int) -> Tensor:
            values = torch.randn(rows, columns, device=device, generator=generator)
            return values.div(columns**0.5).to(work.dtype)

        self._work, self._device = work, device
        self._gate_up = drawn(2 * work.intermediate, work.width)
        self._down = drawn(work.width, work.intermediate)
        self._inputs = [drawn(work.rows, work.width) for _ in range(2)]

    def copies_for(self, share: float) -> float:
        """Return the copies of a tensor that take this share of the time of a stage."""
        whole = [self._compute(1.0, None)[1].overlap() for _ in range(_PROBES)]
        return share * median(step.compute_s / step.communication_s for step in whole)

    def measure(self, copies: float, by: StreamsBy, rounds: int) -> CardFigures:
        """Compute in both ways, in turns; the first round of each warms up."""
        in_turn: list[StepOverlap] = []
        halves: list[StepOverlap] = []
        is_equal = True
        for at in range(rounds + 1):
            expected, turn_trace = self._compute(copies, None)
            result, trace = self._compute(copies, by)
            is_equal &= _are_equal(result, expected)
            if at:
                in_turn.append(turn_trace.overlap())
                halves.append(trace.overlap())
        before, after = _median(in_turn), _median(halves)
        stage_s = before.compute_s / (2 * self._work.num_layers)
        carried_s = before.communication_s / (2 * self._work.num_layers)
        possible_s = max(before.compute_s + carried_s, before.communication_s + stage_s)
        return CardFigures(
            layout=by,
            copies=copies,
            in_turn=before,
            halves=after,
            speedup=before.seconds / after.seconds,
            bound=before.seconds / possible_s,
            is_equal=is_equal,
        )

    def _compute(self, copies: float, by: StreamsBy | None) -> tuple[Results, StepTrace]:
        """Compute both halves, one after the other where `by` is None."""
        trace, collectives = StepTrace(), HostCopies(self._work, self._device, copies)
        first, second = (self._layers(x) for x in self._inputs)
        layout = open_streams(self._device, by or StreamsBy.KIND)
        with closing(layout) as streams, torch.inference_mode():
            if by is not None:
                return drive_halves(first, second, collectives, streams, trace), trace
            current = streams.current
            alone = drive_traced(first, collectives, current, trace)
            return (alone, drive_traced(second, collectives, current, trace)), trace

    def _layers(self, x: Tensor) -> Generator[AllReduce, Tensor | None, Tensor]:
        for layer in range(self._work.num_layers):
            gate, up = torch.nn.functional.linear(x, self._gate_up).chunk(2, dim=-1)
            down = torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, self._down)
            yield AllReduce(down, StageName("feed_forward", layer))
            x = torch.nn.functional.rms_norm(x + down, x.shape[-1:])
        return x


def _are_equal(results: Results, others: Results) -> bool:
    return all(
        result is not None and other is not None and torch.equal(result, other)
        for result, other in zip(results, others, strict=True)
    )


def _median(steps: Sequence[StepOverlap]) -> StepOverlap:
    return StepOverlap(
        compute_s=median(step.compute_s for step in steps),
        communication_s=median(step.communication_s for step in steps),
        exposed_s=median(step.exposed_s for step in steps),
    )


def _opened(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise BenchmarkError(f"--device {name} cannot be used: {reason}") from None
    return device


def _name_of(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def _table_of(figures: Sequence[CardFigures]) -> Table:
    table = Table(title="Two halves on the streams of one device", title_justify="left", box=None)
    for name in ("streams by", "share", "in turn, ms", "halves, ms", "overlap", "speedup", "bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for case in figures:
        table.add_row(
            case.layout,
            f"{case.share:.2f}",
            f"{case.in_turn.seconds * 1e3:.2f}",
            f"{case.halves.seconds * 1e3:.2f}",
            f"{case.overlap:.2f}",
            f"{case.speedup:.3f}",
            f"{case.bound:.3f}",
        )
    return table
