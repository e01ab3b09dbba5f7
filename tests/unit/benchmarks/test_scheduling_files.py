"""Output, files and refusals of benchmarks.scheduling."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.scheduling.capacity import Run
from benchmarks.scheduling.cli import app
from benchmarks.scheduling.cost import SETTINGS, Setting, measure_memory, measure_step
from benchmarks.scheduling.trial import Trial, verdict

pytestmark = pytest.mark.slow

TRACE_ROWS = 60


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [
        f"2023-11-16 18:15:{number:02}.5000000,{100 + 37 * number % 400},{10 + number % 9}"
        for number in range(TRACE_ROWS)
    ]
    file = tmp_path / "trace.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows), encoding="utf-8")
    return file


def simulate(trace: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(
        app,
        [
            *("simulate", "--trace", str(trace), "--first", "0", "--requests", "20"),
            *("--jobs", "1", "--chunk", "64", "--chunk", "512", "--precision", "0.3"),
            *options,
        ],
    )
    return result.exit_code, result.output


def test_simulate_writes_a_table_a_document_and_a_plot(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "result"
    code, text = simulate(trace, "--target", "2000/80", "--out", str(out))

    assert code == 0, text
    assert "npu, poisson, TTFT 2000 ms, TPOT 80 ms" in text
    assert "times the goodput of the best one" in text
    document = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert [len(comparison["entries"]) for comparison in document["comparisons"]] == [3, 3]
    assert document["prices"]["base_s"] == 25.8e-3
    assert (out / "result.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--machine", "tpu"], "--machine is 'tpu'; it must be one of npu, gpu, cpu"),
        (["--arrivals", "never"], "--arrivals is 'never'; it must be one of trace, poisson, both"),
        (["--target", "fast"], "'fast' is not a pair of targets"),
        (["--target", "-1/50"], "--ttft-ms is -1; it must be more than 0"),
        (["--requests", "100"], "The trace has 60 requests, not the 100 from number 0 on"),
    ],
)
def test_wrong_usage_is_one_sentence(trace: Path, options: list[str], sentence: str) -> None:
    code, text = simulate(trace, *options)

    assert code == 2
    assert sentence in text


def test_a_trace_that_is_not_there_says_so() -> None:
    code, text = simulate(Path("nowhere.csv"))

    assert code == 1
    assert "The trace nowhere.csv cannot be read" in text


def test_a_model_that_is_not_there_says_so(trace: Path) -> None:
    result = CliRunner().invoke(app, ["engine", "--model", "nowhere", "--trace", str(trace)])

    assert result.exit_code == 1
    assert "nowhere is not a checkpoint: it has no config.json" in result.output


def test_an_unknown_setting_is_refused_with_the_names() -> None:
    result = CliRunner().invoke(app, ["cost", "--setting", "magic"])

    assert result.exit_code == 2
    assert "--setting is 'magic'; it must be a part of one of: splitfuse," in result.output


# ── cost ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_load_whose_cost_is_measured_is_a_steady_one(setting: Setting) -> None:
    seen = measure_step(setting, 32, 40, steps=20)

    assert seen.steps == 20
    # Prefill steps of the strategy continuous have a row or two; most steps are full.
    assert seen.mean_rows > 20
    assert seen.p50_ms <= seen.p99_ms


def test_a_request_takes_memory_while_it_waits_and_while_it_runs() -> None:
    seen = measure_memory(SETTINGS[0], count=50)

    assert 100 < seen.waiting_bytes < seen.running_bytes


# ── trials on the real engine ────────────────────────────────────────────────────────────────


def trial(policy: str, repeat: int, goodput: float, *, sustained: bool = True) -> Trial:
    run = Run(
        rate=1.0,
        goodput=goodput,
        sustained=sustained,
        ttft_ms=None,
        tpot_ms=None,
        output_tokens_per_s=0.0,
        total_tokens_per_s=0.0,
        num_requests=1,
    )
    return Trial(
        policy=policy, is_static=policy != "SLO budget", repeat=repeat, load_share=0.5, run=run
    )


def test_a_verdict_compares_within_a_repeat() -> None:
    seen = verdict(
        [
            trial("static 64", 0, 1.0),
            trial("static 256", 0, 2.0),
            trial("SLO budget", 0, 3.0),
            trial("static 64", 1, 10.0),
            trial("SLO budget", 1, 12.0),
        ]
    )

    assert seen.ratios == [1.5, 1.2]
    assert seen.median == pytest.approx(1.35)


def test_a_load_that_is_not_sustained_counts_for_one_of_the_two_ratios() -> None:
    seen = verdict(
        [
            trial("static 64", 0, 1.0),
            trial("static 64", 0, 4.0, sustained=False),
            trial("SLO budget", 0, 2.0),
        ]
    )

    assert seen.ratios == [0.5]
    assert seen.sustained_ratios == [2.0]
