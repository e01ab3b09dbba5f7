"""The protocol of benchmarks.peers, processes, turns, a real Tandem."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.engines import (
    KINDS,
    TANDEM,
    EngineKind,
    InstalledEngine,
    physical_cores,
    runner_environment,
)
from benchmarks.peers.figures import first_lowest, steady_rate
from benchmarks.peers.models import ensure_model
from benchmarks.peers.process import RunnerFailed, RunnerProcess
from benchmarks.peers.rows import parse_row
from benchmarks.peers.runners.protocol import (
    Failed,
    Load,
    Loaded,
    MeasureRoofline,
    Message,
    ProtocolError,
    RooflineRates,
    Row,
    Times,
    decode,
    encode,
)
from benchmarks.peers.shapes import ModelShape
from benchmarks.peers.turns import (
    Settings,
    Turn,
    measure,
    measure_roofline,
    rates_of,
    run_turn,
    turns,
)
from benchmarks.serving.errors import WrongUsage

pytestmark = pytest.mark.slow

TINY = ModelShape(
    name="T",
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    intermediate_size=48,
    vocab_size=64,
)
LOAD = Load(
    model="/m",
    weights="bf16",
    num_threads=1,
    num_sequences=2,
    num_tokens=100,
    longest=50,
    kv_bytes=1000,
    pin=False,
)
SETTINGS = Settings(
    rows=tuple(map(parse_row, ("1x8x4", "3x5x2", "1x20x1"))),
    repeats=1,
    row_s=0.0,
    timeout_s=120.0,
    cores=(physical_cores()[0],),
)
OWN = InstalledEngine(kind=KINDS[TANDEM], python=Path(sys.executable))
TURN = Turn(repeat=0, model="T", weights="bf16", engine=OWN)


class FakeRunner:
    """Answers rows with tokens a second apart, and remembers what it was asked."""

    begin_s = 0.0

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.asked: list[Message] = []
        self._fails_at = fails_at

    def ask(self, message: Message, *, timeout_s: float) -> Message:
        assert timeout_s == SETTINGS.timeout_s
        self.asked.append(message)
        if len(self.asked) - 1 == self._fails_at:
            raise RunnerFailed("it broke")
        if isinstance(message, Row):
            times_s = [float(second + 1) for second in range(message.num_output)]
            return Times(times_s=[times_s for _ in message.prompts])
        return Loaded(version="7", settings={"a": 1})

    def peak_bytes(self) -> int | None:
        return 123


@pytest.fixture
def runner_that(tmp_path: Path) -> Callable[[str], RunnerProcess]:
    """A process that runs the given Python in place of a runner's module."""

    def start(code: str) -> RunnerProcess:
        (tmp_path / "made_up.py").write_text(code, encoding="utf-8")
        kind = EngineKind(name="made_up", title="Made up", runner="made_up", types={})
        engine = InstalledEngine(
            kind=kind, python=Path(sys.executable), environment={"PYTHONPATH": str(tmp_path)}
        )
        return RunnerProcess(engine, [0], pin=False, log=tmp_path / "log")

    return start


@pytest.mark.parametrize(
    "message",
    [
        LOAD,
        Row(prompts=[[1, 2], [3]], num_output=4),
        MeasureRoofline(gemms=[[2, 3]], num_layers=1, sizes=[16], types=["bf16"], num_threads=1),
        Loaded(version="1", settings={"threads": 2}),
        Times(times_s=[[0.5, 1.0]]),
        RooflineRates(bandwidth=1.0, bandwidth_by="C", bf16={"16": 2.0}, w8a8={}),
        Failed(error="no\nmemory"),
    ],
)
def test_a_message_is_one_line_and_comes_back_as_it_was(message: Message) -> None:
    line = encode(message)

    assert line.count("\n") == 1
    assert decode(line) == message


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("hello", "'hello' is not a message"),
        ("[1]", "is not a message"),
        ('{"kind": "dance"}', "is not a message"),
        ('{"kind": "failed"}', "A failed message lacks, or does not know: error"),
        ('{"kind": "failed", "error": "", "x": 1}', "lacks, or does not know: x"),
    ],
)
def test_a_line_that_is_no_message_is_refused(line: str, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence.replace("[", r"\[")):
        decode(line)


def test_engines_alternate_and_every_other_repeat_goes_backwards() -> None:
    vllm = replace(OWN, kind=KINDS["vllm"])

    order = [
        (turn.repeat, turn.weights, turn.engine.kind.name)
        for turn in turns([OWN, vllm], ["S"], ["bf16", "w8a8"], repeats=2)
    ]

    assert order == [
        (0, "bf16", "tandem"),
        (0, "bf16", "vllm"),
        (0, "w8a8", "tandem"),
        (1, "bf16", "vllm"),
        (1, "bf16", "tandem"),
        (1, "w8a8", "tandem"),
    ]


def test_a_turn_loads_warms_up_and_measures_each_row() -> None:
    runner = FakeRunner()

    seen = measure(runner, TURN, TINY, Path("/m"), SETTINGS, note=lambda _: None)

    load, *rows = runner.asked
    assert isinstance(load, Load)
    assert (load.num_sequences, load.num_tokens, load.longest) == (3, 96, 96)
    assert load.kv_bytes == 96 * TINY.kv_bytes_per_token
    assert [_size(row) for row in rows] == [
        (1, 32, 1),
        *((1, 8, 2), (1, 8, 4)),
        *((3, 5, 2), (3, 5, 2)),
        *((1, 20, 1), (1, 20, 1)),
    ]
    assert [str(each.row) for each in seen.samples] == ["1x8x4", "3x5x2", "1x20x1"]
    assert (seen.error, seen.version, seen.peak_bytes) == (None, "7", 123)


def test_a_row_is_measured_until_its_time_is_spent() -> None:
    settings = replace(SETTINGS, rows=(parse_row("1x8x4"),), row_s=9.0)

    seen = measure(FakeRunner(), TURN, TINY, Path("/m"), settings, note=lambda _: None)

    # Four seconds each.
    assert len(seen.samples) == 3


def test_no_two_rows_have_the_same_prompts() -> None:
    runner = FakeRunner()
    settings = replace(SETTINGS, rows=(parse_row("2x8x4"),), row_s=9.0)

    measure(runner, TURN, TINY, Path("/m"), settings, note=lambda _: None)

    prompts = [tuple(p) for row in runner.asked if isinstance(row, Row) for p in row.prompts]
    assert len(set(prompts)) == len(prompts)
    assert all(16 <= token < TINY.vocab_size for prompt in prompts for token in prompt)


def test_a_turn_that_breaks_keeps_the_rows_before_it() -> None:
    seen = measure(FakeRunner(fails_at=5), TURN, TINY, Path("/m"), SETTINGS, note=lambda _: None)

    assert seen.error == "it broke"
    assert [str(each.row) for each in seen.samples] == ["1x8x4"]


def test_tandem_runs_rows_in_a_process_of_its_own(tmp_path: Path) -> None:
    checkpoint = ensure_model(TINY, tmp_path)

    seen = run_turn(TURN, TINY, checkpoint, SETTINGS, log=tmp_path / "log", note=lambda _: None)

    assert seen.error is None, (tmp_path / "log").read_text(encoding="utf-8")
    assert seen.load_s is not None
    assert seen.load_s > 0
    assert seen.peak_bytes is None or seen.peak_bytes > 1 << 20
    assert [str(each.row) for each in seen.samples] == ["1x8x4", "3x5x2", "1x20x1"]
    for sample in seen.samples:
        assert len(sample.times_s) == sample.row.concurrency
        for times_s in sample.times_s:
            assert len(times_s) == sample.row.shape.num_output
            assert list(times_s) == sorted(times_s)
            assert times_s[0] > 0


def test_what_an_engine_cannot_do_is_a_sentence(tmp_path: Path) -> None:
    # No engine has this type: what matters is that the reason arrives.
    turn = replace(TURN, weights="w2a2")

    seen = run_turn(turn, TINY, tmp_path, SETTINGS, log=tmp_path / "log", note=lambda _: None)

    assert seen.error is not None
    assert seen.error.startswith("Tandem: ")
    assert not seen.samples


def test_the_roof_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    roof, reader = measure_roofline(
        Path(sys.executable), TINY, SETTINGS, with_w8a8=False, log=tmp_path / "log"
    )

    assert roof.bandwidth > 0
    assert reader.endswith("huge pages")
    assert list(roof.bf16) == [512]
    assert roof.bf16[512] > 0
    assert roof.w8a8 == {}


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import sys; sys.exit('no such library')", "exited with status.*no such library"),
        ("print('hello'); input()", "sent an invalid answer: 'hello'"),
        ("import time; input(); time.sleep(600)", "no answer within 0.5 s; raise --timeout"),
        (
            'print(\'{"kind": "failed", "error": "too small"}\'); input()',
            "Made up: too small",
        ),
    ],
)
def test_a_runner_that_fails_is_reported_in_a_sentence(
    runner_that: Callable[[str], RunnerProcess], code: str, sentence: str
) -> None:
    timeout_s = 0.5 if "sleep" in code else 60.0

    with runner_that(code) as runner, pytest.raises(RunnerFailed, match=sentence):
        runner.ask(LOAD, timeout_s=timeout_s)


def test_a_missing_interpreter_is_reported_in_a_sentence(tmp_path: Path) -> None:
    engine = replace(OWN, python=tmp_path / "python")

    with pytest.raises(RunnerFailed, match=r"cannot be started.*interpreter that has Tandem"):
        RunnerProcess(engine, [0], pin=False, log=tmp_path / "log")


def test_what_a_runner_prints_does_not_disturb_its_answers(
    runner_that: Callable[[str], RunnerProcess], tmp_path: Path
) -> None:
    root = Path(__file__).parents[3]
    code = f"""
import os, sys
sys.path.insert(0, {str(root)!r})
from benchmarks.peers.runners.protocol import Failed, serve_with
def answer(message):
    print("from Python", flush=True)
    os.write(1, b"from native code")
    return Failed(error="enough")
serve_with(answer)
"""
    with runner_that(code) as runner, pytest.raises(RunnerFailed, match="Made up: enough"):
        runner.ask(LOAD, timeout_s=60.0)

    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert "from Python" in log
    assert "from native code" in log


def test_every_runner_gets_the_same_number_of_threads() -> None:
    variables = [
        runner_environment(replace(OWN, kind=kind), [0, 3], pin=False)["OMP_NUM_THREADS"]
        for kind in KINDS.values()
    ]

    assert variables == ["2"] * 4


def test_where_threads_are_pinned_openmp_pins_those_that_are_its_own() -> None:
    llamacpp = replace(OWN, kind=KINDS["llamacpp"])
    bound = runner_environment(llamacpp, [0, 3], pin=True)
    unbound = runner_environment(llamacpp, [0, 3], pin=False)
    others = [runner_environment(OWN, [0, 3], pin=True)]
    others.append(runner_environment(replace(OWN, kind=KINDS["openvino"]), [0, 3], pin=True))

    assert bound["OMP_PLACES"] == "{0},{3}"
    assert "OMP_PLACES" not in unbound
    assert not [other for other in others if "OMP_PLACES" in other]


def _size(row: Message) -> Sequence[int]:
    assert isinstance(row, Row)
    return len(row.prompts), len(row.prompts[0]), row.num_output


@pytest.mark.parametrize(("text", "is_sampled"), [("16x32x64", False), ("16x32x64:sampled", True)])
def test_a_row_is_written_as_it_is_read(text: str, is_sampled: bool) -> None:
    row = parse_row(text)

    assert str(row) == text
    assert (row.concurrency, row.shape.num_output, row.is_sampled) == (16, 64, is_sampled)


def test_a_row_that_is_chosen_in_an_unknown_way_is_refused() -> None:
    with pytest.raises(WrongUsage, match="ends with ':beams'; write :sampled, or nothing"):
        parse_row("16x32x64:beams")


def test_a_drawn_row_is_drawn_from_its_warm_up_on_and_no_other() -> None:
    runner = FakeRunner()
    settings = replace(SETTINGS, rows=(parse_row("1x8x4"), parse_row("1x8x4:sampled")))

    measure(runner, TURN, TINY, Path("/m"), settings, note=lambda _: None)

    rows = [message for message in runner.asked if isinstance(message, Row)]
    assert [row.is_sampled for row in rows] == [False, False, False, True, True]


def test_one_sequence_runs_for_the_first_seconds_after_loading() -> None:
    runner = FakeRunner()
    settings = replace(SETTINGS, first_s=100.0)

    seen = measure(runner, TURN, TINY, Path("/m"), settings, note=lambda _: None)

    rows = [_size(message) for message in runner.asked if isinstance(message, Row)]
    assert rows[:4] == [(1, 32, 1), (1, 32, 64), (1, 32, 64), (1, 8, 2)]
    assert set(seen.first_rates) == {1.0}  # a token a second


def test_the_first_samples_leave_prompts_out_and_are_half_a_second_long() -> None:
    first = [0.3, 0.4, 0.5, 0.7, 0.9]
    second = [0.4, 0.45, 0.5]  # submitted when the first one had ended

    rates = rates_of([first, second])

    assert rates == pytest.approx([1 / 0.1, 3 / 0.5, 2 / 0.1])
    assert steady_rate(rates) == pytest.approx(13)
    assert first_lowest(rates) == pytest.approx(6 / 13)
    assert steady_rate([]) is None
    assert first_lowest([]) is None
