"""Cases, settings and the loads that come of them."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.case import Case, parse_case
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from benchmarks.serving.plan import ClosedLoop, OpenLoop, loads_of
from benchmarks.serving.settings import LatencyTargets, LoadSettings, parse_token_ids
from tandem_engine.simulate.workload import Shape

CASE = Case(4, Shape(32, 16))


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_case_reads_back_as_it_is_written(
    concurrency: int, num_input: int, num_output: int
) -> None:
    case = Case(concurrency, Shape(num_input, num_output))

    assert parse_case(str(case)) == case


@pytest.mark.parametrize(
    "text", ["", "16", "16x32", "16x32x", "1x2x3x4", "ax1x1", "-1x2x3", "1×2×3"]
)
def test_what_is_no_case_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(
        WrongUsage, match=r"is not a case; write CONCURRENCYxINPUTxOUTPUT in tokens"
    ):
        parse_case(text)


@pytest.mark.parametrize("text", ["1x0x4", "1x4x0"])
def test_a_case_without_tokens_is_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="no tokens in or out"):
        parse_case(text)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "Give --case or --trace"),
        ({"cases": (CASE,), "trace": Path("t.csv")}, "Give --case or --trace"),
        ({"trace": Path("t.csv"), "rate": 1.0}, "A trace has its own arrivals"),
        ({"cases": (CASE,), "limit": 3}, "--speed and --limit go with --trace"),
        ({"cases": (CASE,), "rate": 0.0}, "--rate is 0; it must be more than 0"),
        ({"cases": (CASE,), "rate": math.nan}, "--rate is nan"),
        ({"cases": (CASE,), "duration_s": math.inf}, "--duration is inf"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WrongUsage, match=sentence):
        LoadSettings(**settings)


def test_a_target_of_nothing_is_none() -> None:
    assert not LatencyTargets()
    assert LatencyTargets(ttft_ms=1.0)
    with pytest.raises(WrongUsage, match="--tpot-ms is -1"):
        LatencyTargets(tpot_ms=-1.0)


def test_token_ids_are_a_range() -> None:
    assert parse_token_ids("100-999") == (100, 999)
    for text in ("100", "9-1", "a-b", "-5"):
        with pytest.raises(WrongUsage, match="is not a range of token ids"):
            parse_token_ids(text)


def test_a_case_without_a_rate_is_a_closed_loop() -> None:
    by_time = loads_of(LoadSettings(cases=(CASE,), duration_s=3.0), max_model_len=48)
    by_number = loads_of(LoadSettings(cases=(CASE,), num_requests=7), max_model_len=None)

    assert by_time == [
        ClosedLoop(
            name="4x32x16", shape=CASE.shape, concurrency=4, num_requests=None, duration_s=3.0
        )
    ]
    assert by_number == [
        ClosedLoop(
            name="4x32x16", shape=CASE.shape, concurrency=4, num_requests=7, duration_s=math.inf
        )
    ]


def test_a_case_with_a_rate_is_an_open_loop() -> None:
    [load] = loads_of(LoadSettings(cases=(CASE,), rate=50.0, duration_s=2.0), max_model_len=None)

    assert isinstance(load, OpenLoop)
    assert (load.name, load.max_in_flight) == ("4x32x16 @ 50/s", 4)
    assert all(0 < arrival.due_s < 2 for arrival in load.arrivals)


def test_an_infinite_rate_sends_all_at_once() -> None:
    asked = LoadSettings(cases=(CASE,), rate=math.inf, num_requests=3)

    [load] = loads_of(asked, max_model_len=None)

    assert isinstance(load, OpenLoop)
    assert [arrival.due_s for arrival in load.arrivals] == [0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cases": (CASE,)}, "The case 4x32x16 needs 48 tokens a request; the model takes 40"),
        ({"cases": (Case(0, Shape(1, 1)),)}, "The case 0x1x1 has no callers"),
        ({"cases": (Case(0, Shape(1, 1)),), "rate": math.inf}, "give their number with --requests"),
        ({"cases": (Case(0, Shape(1, 1)),), "rate": 1e-9}, "none arrives within 20 s"),
    ],
)
def test_loads_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(WrongUsage, match=sentence):
        loads_of(LoadSettings(**settings), max_model_len=40)


def test_a_trace_is_clipped_and_sped_up(tmp_path: Path) -> None:
    file = tmp_path / "day.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.6805900,10,5\n"
    )

    [load] = loads_of(LoadSettings(trace=file, speed=2.0), max_model_len=100)

    assert isinstance(load, OpenLoop)
    assert [(arrival.due_s, arrival.shape) for arrival in load.arrivals] == [
        (0.0, Shape(56, 44)),
        (2.0, Shape(10, 5)),
    ]
    assert (load.name, load.num_clipped) == ("day ×2", 1)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BenchmarkError, match=r"none\.csv cannot be read: No such file"):
        loads_of(LoadSettings(trace=tmp_path / "none.csv"), max_model_len=None)
