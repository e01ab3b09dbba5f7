"""Streams: of a host's threads, and of accelerators, which are simulated where there is none."""

import itertools
import threading
from collections.abc import Callable, Generator
from typing import Any, Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.device import torch_streams
from tandem_engine.device.host_streams import HostStream, ThreadStream
from tandem_engine.device.stream_layouts import StreamsBy, arrange, open_streams
from tandem_engine.device.streams import StreamLayout
from tandem_engine.device.torch_streams import Accelerator, TorchStream
from tandem_engine.model.stages import AllReduce, StageName
from tandem_engine.runner.hand_over import drive_halves
from tandem_engine.runner.step_trace import StepTrace
from tests.patience import HANG_S
from tests.unit.engine.microbatch.simulated_accelerator import (
    Buffer,
    SimulatedAccelerator,
)

NUM_STAGES: Final = 4
STAGE: Final = StageName("mlp", 0)
LAYOUTS: Final = st.sampled_from(StreamsBy)
DRAWS: Final = st.lists(st.integers(0, 7), min_size=1, max_size=200)


def simulated(draws: list[int], by: StreamsBy) -> tuple[SimulatedAccelerator, StreamLayout]:
    """A simulated device whose order is drawn, and its streams in a layout."""
    numbers = iter(draws)
    device = SimulatedAccelerator(lambda count: next(numbers, 0) % count)
    accelerator = Accelerator(
        torch.device("meta"),
        new_stream=device.stream,
        current_stream=device.current_stream,
        new_event=device.event,
    )
    current = accelerator.current_stream("compute")
    return device, arrange(current, accelerator.stream, by, later=accelerator.stream("later"))


class SumOf:
    """Collectives of a simulated device: each adds 1,000 to what it is given."""

    def __init__(self, device: SimulatedAccelerator) -> None:
        self.device = device
        self.order: list[int] = []

    def all_reduce(self, tensor: Any) -> None:
        def kernel() -> None:
            self.order.append(tensor.value)
            tensor.value += 1000

        self.device.launch(kernel)

    reduce_scatter = all_gather = all_reduce

    def gather_columns(self, tensor: Any, num_columns: int) -> None:
        raise AssertionError((tensor, num_columns))


def half_of(
    device: SimulatedAccelerator, half: int, seen: list[tuple[int, int]], shared: list[int]
) -> Generator[Any, Any, Any]:
    """Stages that write memory, have it summed, read it, and give it back.

    `shared` stands for the KV cache: the first half writes it, and the second one reads it.
    """
    for stage in range(NUM_STAGES):
        buffer = device.allocate()
        device.launch(written(buffer, shared, half=half, stage=stage))
        yield AllReduce(buffer, STAGE)  # type: ignore[arg-type]
        device.launch(read(buffer, seen, half))
        device.give_back(buffer)
    return None


def written(buffer: Buffer, shared: list[int], *, half: int, stage: int) -> Callable[[], None]:
    def kernel() -> None:
        if half == 0:
            shared[stage] = stage
        assert shared[stage] == stage, "the second half's attention comes behind the first half's"
        buffer.value = 10 * stage + half

    return kernel


def read(buffer: Buffer, seen: list[tuple[int, int]], half: int) -> Callable[[], None]:
    return lambda: seen.append((half, buffer.value))


def run_halves(draws: list[int], by: StreamsBy) -> tuple[list[tuple[int, int]], SumOf, StepTrace]:
    """Drive two halves on a simulated device; return what they read, the sums, and their jobs."""
    device, streams = simulated(draws, by)
    seen: list[tuple[int, int]] = []
    shared, sums, trace = [-1] * NUM_STAGES, SumOf(device), StepTrace()
    first, second = (half_of(device, half, seen, shared) for half in (0, 1))
    drive_halves(first, second, sums, streams, trace)
    streams.close()
    return seen, sums, trace


@given(draws=DRAWS, by=LAYOUTS)
def test_no_memory_is_recycled_while_the_other_stream_reads_it(
    draws: list[int], by: StreamsBy
) -> None:
    """Memory that is given back is handed out again at once; a stage reads its own sums anyway."""
    seen, _, _ = run_halves(draws, by)

    for half in (0, 1):
        values = [value for one, value in seen if one == half]
        assert values == [1000 + 10 * stage + half for stage in range(NUM_STAGES)]


@given(draws=DRAWS, by=LAYOUTS)
def test_collectives_of_a_device_have_one_order(draws: list[int], by: StreamsBy) -> None:
    _, sums, _ = run_halves(draws, by)

    assert sums.order == [10 * stage + half for stage in range(NUM_STAGES) for half in (0, 1)]


@given(draws=DRAWS, by=LAYOUTS)
def test_at_most_one_half_computes_and_one_communicates(draws: list[int], by: StreamsBy) -> None:
    _, _, trace = run_halves(draws, by)

    for kind in ("stage", "collective"):
        spans = sorted((one.begin_s, one.end_s) for one in trace.slices() if one.kind == kind)
        for before, after in itertools.pairwise(spans):
            assert before[1] <= after[0] + 1e-9


@given(draws=DRAWS)
def test_an_event_marks_the_work_before_it_and_no_other(draws: list[int]) -> None:
    """A job is done when its own work is, whatever was put into its stream behind it."""
    device, streams = simulated(draws, StreamsBy.KIND)
    done: list[str] = []

    def work(name: str) -> Callable[[], None]:
        return lambda: device.launch(lambda: done.append(name))

    first = streams.compute[0].run(work("first"))
    streams.compute[0].run(work("later"))
    streams.communication[0].run(work("behind the first"), after=[first])
    first.wait()

    assert "first" in done
    streams.close()
    assert done.index("first") < done.index("behind the first")
    assert first.span().begin_s <= first.span().end_s


def test_without_the_wait_for_a_job_the_simulated_device_shows_the_race() -> None:
    """The check that the checks above can fail."""
    numbers = iter([1] * 100)
    device = SimulatedAccelerator(lambda count: next(numbers, 0) % count)
    buffer = Buffer(device.entered[-1])
    other = device.stream()
    device.launch(lambda: setattr(buffer, "value", 7))
    found: list[int] = []
    with other:
        device.launch(lambda: found.append(buffer.value))

    device.run_one()

    assert found == [-1]


def test_a_stream_of_a_device_waits_for_no_job_of_the_host() -> None:
    device, streams = simulated([], StreamsBy.KIND)

    with pytest.raises(TypeError, match="cannot wait"):
        streams.current.run(device.allocate, after=[HostStream("host").run(int)])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("by", StreamsBy)
def test_streams_of_cuda_keep_the_order_of_jobs(by: StreamsBy) -> None:
    device = torch.device("cuda")
    streams = open_streams(device, by)
    assert isinstance(streams.current, TorchStream)
    x = torch.full((1 << 20,), 1.0, device=device)

    first = streams.compute[0].run(lambda: x.mul_(2.0))
    second = streams.communication[1].run(lambda: x.add_(1.0), after=[first])
    last = streams.current.run(x.sum, after=[second])

    assert float(last.result()) == 3.0 * (1 << 20)
    assert first.span().end_s <= second.span().end_s
    streams.close()


@pytest.mark.parametrize(("by", "count"), [(StreamsBy.KIND, 2), (StreamsBy.HALF, 3)])
def test_a_layout_has_the_streams_that_its_name_says(by: StreamsBy, count: int) -> None:
    streams = open_streams(torch.device("cpu"), by)

    names = {one.name for one in (streams.current, *streams.compute, *streams.communication)}

    assert len(names) == count
    streams.close()
    streams.close()


def test_a_thread_does_its_work_behind_what_it_waits_for() -> None:
    gate, order = threading.Event(), []
    one, other = ThreadStream("one"), ThreadStream("other")

    def held() -> str:
        assert gate.wait(HANG_S)
        order.append("first")
        return "first"

    first = one.run(held)
    second = other.run(lambda: order.append("second"), after=[first])
    gate.set()
    second.wait()

    assert order == ["first", "second"]
    assert first.result() == "first"
    assert first.span().end_s <= second.span().begin_s
    one.close()
    other.close()


def test_what_waits_for_work_that_failed_fails_with_it() -> None:
    one, other = ThreadStream("one"), ThreadStream("other")

    def fail() -> None:
        raise ConnectionError("the link is cut")

    behind = other.run(int, after=[one.run(fail)])

    with pytest.raises(ConnectionError, match="the link is cut"):
        behind.wait()
    with pytest.raises(ConnectionError, match="the link is cut"):
        other.run(int).result()
    one.close()
    other.close()


class DayClock:
    """A host and a device whose clock is 50 millionths slow, and which counts in 32 bits."""

    def __init__(self) -> None:
        self.host_s = 0.0

    def event(self, _: Any = None) -> "DayEvent":
        return DayEvent(self)


class DayEvent:
    """Done when it is recorded."""

    def __init__(self, clock: DayClock) -> None:
        self.clock = clock

    def record(self, _: Any) -> None:
        self.host_s = self.clock.host_s

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "DayEvent") -> float:
        elapsed_ms = (end.host_s - self.host_s) * (1 - 50e-6) * 1e3
        return float(torch.tensor(elapsed_ms, dtype=torch.float32))


def test_times_of_a_device_are_those_of_the_host_after_days(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = DayClock()
    monkeypatch.setattr(torch_streams, "_CLOCK", lambda: clock.host_s)
    accelerator = Accelerator(torch.device("meta"), new_event=clock.event)
    for seconds in (0.0, 1.0, 3 * 86400.0, 3 * 86400.0 + 9.0):
        clock.host_s = seconds
        begin = accelerator.mark(None)
        clock.host_s += 1e-3
        end = accelerator.mark(None)

        begin_s, end_s = (accelerator.seconds(event, None) for event in (begin, end))
        assert begin_s == pytest.approx(seconds, abs=1e-3)
        assert end_s - begin_s == pytest.approx(1e-3, abs=2e-6)
