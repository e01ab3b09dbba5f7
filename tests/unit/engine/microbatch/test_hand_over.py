"""The hand-over: the order of stages and collectives, what runs beside what, and failures."""

import threading
import weakref
from collections.abc import Generator
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from tandem_engine.device.host_streams import HostStream, ThreadStream
from tandem_engine.device.stream_layouts import StreamsBy, open_streams
from tandem_engine.model.stages import AllReduce, Collective, GatherColumns, StageName, Stages
from tandem_engine.runner.hand_over import drive_halves, drive_timed, drive_traced
from tandem_engine.runner.step_trace import StepTrace
from tests.patience import HANG_S

STAGE = StageName("attention", 1)


@pytest.fixture(params=StreamsBy)
def streams_by(request: pytest.FixtureRequest) -> StreamsBy:
    """Both layouts of streams."""
    found: StreamsBy = request.param
    return found


class Recorder:
    """Collectives that write down when they begin and end, beside what the halves do."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.fails_at = ""

    def _note(self, tensor: Tensor) -> None:
        name = f"{'AB'[int(tensor[0])]}{int(tensor[1])}"
        self.events.append(f"begin link {name}")
        if name == self.fails_at:
            raise ConnectionError(name)
        self.events.append(f"end link {name}")

    def all_reduce(self, tensor: Tensor) -> None:
        self._note(tensor)

    def reduce_scatter(self, tensor: Tensor) -> None:
        self._note(tensor)

    def all_gather(self, tensor: Tensor) -> None:
        self._note(tensor)

    def gather_columns(self, tensor: Tensor, num_columns: int) -> Tensor | None:
        self._note(tensor)
        return torch.full((1,), num_columns)


def stages(half: int, count: int, recorder: Recorder, *, fails_at: int = 0) -> Stages:
    """So many stages, the last of which gathers columns."""

    def made() -> Generator[Collective, Tensor | None, Tensor | None]:
        received: Tensor | None = None
        try:
            for number in range(1, count + 1):
                recorder.events.append(f"compute {'AB'[half]}{number}")
                if number == fails_at:
                    raise ValueError(f"{'AB'[half]}{number}")
                tensor = torch.tensor([half, number])
                is_last = number == count
                received = (
                    yield GatherColumns(tensor, STAGE, 7) if is_last else AllReduce(tensor, STAGE)
                )
            return received
        finally:
            recorder.events.append(f"close {'AB'[half]}")

    return made()


def driven(
    recorder: Recorder,
    first: Stages,
    second: Stages,
    by: StreamsBy = StreamsBy.KIND,
    trace: StepTrace | None = None,
) -> tuple[Tensor | None, ...]:
    streams = open_streams(torch.device("cpu"), by)
    try:
        return drive_halves(first, second, recorder, streams, trace or StepTrace())
    finally:
        streams.close()


@pytest.mark.parametrize(("first", "second"), [(1, 1), (3, 3), (3, 2), (2, 4)])
def test_halves_take_turns_in_computing_and_in_communicating(
    first: int, second: int, streams_by: StreamsBy
) -> None:
    recorder = Recorder()

    given = driven(recorder, stages(0, first, recorder), stages(1, second, recorder), streams_by)

    assert [int(one[0]) for one in given if one is not None] == [7, 7]
    turns = [
        f"{half}{number}"
        for number in range(1, max(first, second) + 1)
        for half, count in (("A", first), ("B", second))
        if number <= count
    ]
    for kind in ("compute", "begin link", "end link"):
        found = [
            event.removeprefix(kind + " ") for event in recorder.events if event.startswith(kind)
        ]
        assert found == turns
    links = [event for event in recorder.events if "link" in event]
    assert all(
        (one.startswith("begin"), other.startswith("end")) == (True, True)
        for one, other in pairwise(links)
        if one.startswith("begin")
    )


def test_a_stage_begins_when_its_own_collective_is_over(streams_by: StreamsBy) -> None:
    recorder = Recorder()

    driven(recorder, stages(0, 5, recorder), stages(1, 5, recorder), streams_by)

    for half in "AB":
        for number in range(1, 5):
            end = recorder.events.index(f"end link {half}{number}")
            assert end < recorder.events.index(f"compute {half}{number + 1}")


def test_one_half_computes_while_the_other_communicates(streams_by: StreamsBy) -> None:
    """The collective of A ends only when B has computed: in turns alone this would hang."""
    computed = threading.Event()

    class Waiting(Recorder):
        def _note(self, tensor: Tensor) -> None:
            if not int(tensor[0]):
                assert computed.wait(HANG_S)
            super()._note(tensor)

    def second() -> Generator[Collective, Tensor | None, Tensor | None]:
        computed.set()
        yield AllReduce(torch.tensor([1, 1]), STAGE)
        return None

    recorder = Waiting()
    driven(recorder, stages(0, 1, recorder), second(), streams_by)

    assert recorder.events[:1] == ["compute A1"]
    assert "end link B1" in recorder.events


@pytest.mark.parametrize("half", [0, 1])
def test_a_half_that_fails_ends_both(half: int, streams_by: StreamsBy) -> None:
    recorder = Recorder()
    parts = [stages(one, 4, recorder, fails_at=3 * (one == half)) for one in (0, 1)]

    with pytest.raises(ValueError, match=f"{'AB'[half]}3"):
        driven(recorder, parts[0], parts[1], streams_by)

    assert {"close A", "close B"} <= set(recorder.events)


@pytest.mark.parametrize("name", ["A1", "B2", "A4", "B4"])
def test_a_collective_that_fails_ends_both(name: str, streams_by: StreamsBy) -> None:
    recorder = Recorder()
    recorder.fails_at = name

    with pytest.raises(ConnectionError, match=name):
        driven(recorder, stages(0, 4, recorder), stages(1, 4, recorder), streams_by)

    assert {"close A", "close B"} <= set(recorder.events)


def test_a_half_that_fails_leaves_the_memory_of_the_other_to_its_collective(
    streams_by: StreamsBy,
) -> None:
    """A's collective ends only when B has raised, and A's memory is given back only then."""
    raised = threading.Event()

    class Slow(Recorder):
        def _note(self, tensor: Tensor) -> None:
            self.events.append(f"begin {int(tensor[0])}")
            assert raised.wait(HANG_S)
            # Time for a close that does not wait.
            self.closed_meanwhile = closed.wait(0.1)
            self.events.append("end")

    closed = threading.Event()
    recorder = Slow()

    def first() -> Generator[Collective, Tensor | None, Tensor | None]:
        try:
            yield AllReduce(torch.tensor([0, 1]), STAGE)
        finally:
            recorder.events.append("close")
            closed.set()
        return None

    def second() -> Generator[Collective, Tensor | None, Tensor | None]:
        raised.set()
        raise ValueError
        yield

    with pytest.raises(ValueError):
        driven(recorder, first(), second(), streams_by)

    assert recorder.events == ["begin 0", "end", "close"]
    assert not recorder.closed_meanwhile


def test_no_collective_is_carried_out_behind_one_that_failed() -> None:
    begun = threading.Event()

    class Failing(Recorder):
        def _note(self, tensor: Tensor) -> None:
            assert begun.wait(HANG_S)
            super()._note(tensor)

    recorder = Failing()
    recorder.fails_at = "A1"
    stream = ThreadStream("communication")
    tensors = [torch.tensor([half, 1]) for half in (0, 1)]
    behind = [stream.run(partial(recorder.all_reduce, tensor)) for tensor in tensors]
    begun.set()

    for one in behind:
        with pytest.raises(ConnectionError, match="A1"):
            one.result()
    stream.close()
    assert recorder.events == ["begin link A1"]


def test_a_whole_step_exposes_all_of_its_communication() -> None:
    recorder, trace = Recorder(), StepTrace()

    given = drive_traced(stages(0, 3, recorder), recorder, HostStream("compute"), trace)

    assert given is not None
    measured = trace.overlap()
    assert measured.exposed_s == measured.communication_s > 0.0
    assert measured.hidden_s == 0.0
    assert measured.compute_s > 0.0


def test_a_whole_step_is_measured_without_a_trace() -> None:
    recorder, other, trace = Recorder(), Recorder(), StepTrace()

    given, measured = drive_timed(stages(0, 3, recorder), recorder)
    drive_traced(stages(0, 3, other), other, HostStream("compute"), trace)

    assert given is not None
    assert recorder.events == other.events
    assert measured.exposed_s == measured.communication_s > 0.0
    assert measured.compute_s > 0.0


def test_a_measured_step_that_fails_is_closed() -> None:
    recorder = Recorder()
    recorder.fails_at = "A2"

    with pytest.raises(ConnectionError, match="A2"):
        drive_timed(stages(0, 3, recorder), recorder)

    assert recorder.events[-1] == "close A"


def test_a_trace_names_stages_by_the_collectives_behind_them(streams_by: StreamsBy) -> None:
    recorder, trace = Recorder(), StepTrace()

    driven(recorder, stages(0, 2, recorder), stages(1, 2, recorder), streams_by, trace)

    slices = trace.slices()
    for half in (0, 1):
        names = [one.name for one in slices if one.half == half]
        assert names == ["attention 1", "all_reduce", "attention 1", "gather_columns", "end"]
    assert {one.num_bytes for one in slices if one.kind == "collective"} == {16}
    for one in slices:
        assert all(slices[place].end_s <= one.begin_s for place in one.after)
        assert all(slices[place].stream != one.stream for place in one.after)


def test_slices_of_a_stream_do_not_overlap(streams_by: StreamsBy) -> None:
    recorder, trace = Recorder(), StepTrace()

    driven(recorder, stages(0, 4, recorder), stages(1, 4, recorder), streams_by, trace)

    for stream in {one.stream for one in trace.slices()}:
        found = [one for one in trace.slices() if one.stream == stream]
        assert all(one.end_s <= other.begin_s for one, other in pairwise(found))


def test_a_trace_keeps_no_memory_of_its_step() -> None:
    trace = StepTrace()
    alive: list[weakref.ref[Tensor]] = []

    def made() -> Generator[Collective, Tensor | None, Tensor | None]:
        for _ in range(3):
            tensor = torch.zeros(4)
            alive.append(weakref.ref(tensor))
            yield AllReduce(tensor, STAGE)
            del tensor
        return None

    class Quiet(Recorder):
        def _note(self, tensor: Tensor) -> None:
            self.events.append(str(len(tensor)))

    driven(Quiet(), made(), made(), StreamsBy.KIND, trace)

    assert len(alive) == 6
    assert [one() for one in alive] == [None] * 6
    assert trace.overlap().communication_s > 0.0
