"""The arithmetic and the output of benchmarks.kernels, on a model of a few hundred weights."""

import io
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

from benchmarks.kernels import cases, measure, session
from benchmarks.kernels.cases import Case, cases_of
from benchmarks.kernels.cli import app
from benchmarks.kernels.measure import Limits, Stopwatch, measure_limits
from benchmarks.kernels.report import CaseTimes, kernel_table, show, step_table, write_json
from benchmarks.kernels.sampling import sampling_cases
from benchmarks.kernels.shapes import BLOCK_SIZE, MODELS, Batch, make_cache, make_decoder
from benchmarks.kernels.steps import (
    StepTimes,
    floor_seconds,
    measure_steps,
    num_multiplied,
    read_bytes,
    weight_bytes,
)
from tandem_engine.device import kv_int8
from tandem_engine.device.reference.kernels import ReferenceKernels
from tandem_engine.quantization.scheme import AT_LOAD_SCHEME
from tandem_engine.sampling.step_tokens import StepTokens
from tests.unit.engine.native import native_kernels

# A layer: qkv (2 + 2) · 8 by 16, output 16 by 16, gate and up 48 by 16, down 16 by 24:
# 512 + 256 + 768 + 384 = 1920; the head 20 by 16 = 320.
TINY = replace(
    MODELS["S"],
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    intermediate_size=24,
    vocab_size=20,
)
DECODE = Batch.decode(3, 70)
PROMPT = Batch.prompt(5)
MIXED = Batch("both", ((1, 9), (4, 2)))
LIMITS = Limits(read_bytes_per_s=1e9, gemm_per_s=1e12)
SAMPLED = (700, 3)
ONCE = Stopwatch(num_threads=1, seconds=0)

runner = CliRunner()


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two weights instead of what fills caches, and one thread: on shapes so small, threads wait
    for each other longer than they compute."""
    monkeypatch.setattr(cases, "_copies", lambda *_: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def _tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "S", TINY)
    monkeypatch.setitem(MODELS, "M", TINY)
    monkeypatch.setattr(measure, "_READ_BYTES", 1 << 16)
    monkeypatch.setattr(measure, "_PEAK_SHAPE", (4, 16, 32))
    monkeypatch.setattr(session, "KERNEL_BATCHES", [DECODE, PROMPT])
    monkeypatch.setattr(session, "STEP_BATCHES", [DECODE, PROMPT])
    monkeypatch.setattr(session, "SAMPLED", SAMPLED)


def step(batch: Batch = DECODE, *, reference: float | None = 0.3) -> StepTimes:
    return StepTimes(
        model="S",
        batch=batch,
        native=0.1,
        native_gemm=0.06,
        native_int8=0.05,
        reference=reference,
    )


def case(**overrides: object) -> Case:
    settings = {"num_bytes": 500_000, "operations": 10_000_000} | overrides
    return Case(kernel="k", shape="s", prepare=lambda _: lambda: None, **settings)  # type: ignore[arg-type]


# ── batches ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("batch", "tokens", "keys", "scores"),
    [
        (DECODE, 3, 210, 210),
        (PROMPT, 5, 5, 15),
        # 10 for the first row; its four see 3, 4, 5 and 6.
        (MIXED, 5, 16, 28),
    ],
    ids=lambda value: value.name if isinstance(value, Batch) else None,
)
def test_what_a_batch_computes_and_reads(batch: Batch, tokens: int, keys: int, scores: int) -> None:
    assert (batch.num_tokens, batch.num_keys, batch.num_scores) == (tokens, keys, scores)


def test_a_layout_gives_each_row_blocks_of_its_own() -> None:
    layout = DECODE.layout()

    assert sorted(layout.blocks.tolist()) == list(range(6))  # 70 tokens take two blocks of 64
    assert layout.context_lens.tolist() == [70, 70, 70]
    assert layout.block_size == BLOCK_SIZE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_a_cache_is_filled_with_numbers(dtype: torch.dtype) -> None:
    k_cache, v_cache = make_cache(TINY, DECODE, dtype)[1]

    for cache in (k_cache, v_cache):
        blocks = torch.arange(6)
        plain = kv_int8.read_blocks(cache, blocks) if dtype == torch.int8 else cache.float()
        assert plain.shape == (6, 1, BLOCK_SIZE, 8)
        assert plain.isfinite().all()
        assert 0.5 < float(plain.std()) < 4


# ── kernels and steps ────────────────────────────────────────────────────────────────────────


def test_every_kernel_runs_on_both_kinds_and_says_the_same() -> None:
    native, reference = native_kernels(), ReferenceKernels()
    seen = []

    for one in cases_of(TINY, [DECODE, PROMPT]):
        with torch.inference_mode():
            expected, got = one.make(reference)(), one.make(native)()
        seen.append(one.kernel)
        for ours, theirs in zip(tensors(got), tensors(expected), strict=True):
            torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)

    assert set(seen) == {
        "add, norm",
        "q/k norm, rotary, cache",
        "q/k norm, rotary, cache, int8",
        "attention",
        "attention, int8",
        "silu * mul",
        "linear 16 to 48",
        "linear 24 to 16",
        "linear 16 to 48, W8A8",
        "linear 24 to 16, W8A8",
    }


def test_every_way_of_sampling_runs_on_both_kinds_and_chooses_the_same() -> None:
    native, reference = native_kernels(), ReferenceKernels()
    found = list(sampling_cases(*SAMPLED))

    for one in found:
        got, expected = one.make(native)(), one.make(reference)()
        assert isinstance(got, StepTokens)
        assert isinstance(expected, StepTokens)
        assert torch.equal(got.token_ids, expected.token_ids)
        assert bool(got.logprobs) == (one.kernel == "sample, logprobs 20")
    assert len({one.kernel for one in found}) == len(found)
    assert {one.num_bytes for one in found} == {3 * 700 * 4}


def tensors(result: object) -> list[torch.Tensor]:
    found = result if isinstance(result, tuple) else (result,)
    return [one for one in found if isinstance(one, torch.Tensor)]


@pytest.mark.parametrize(
    ("kernel", "num_bytes", "operations"),
    [
        # Two read and two written, [3, 16] of 2 bytes each.
        ("add, norm", 4 * 96, 0),
        # qkv [3, 32] in, Q [3, 16] out, a token of K and V: 2 · 8 of 2 bytes, or 2 · (8 + 4).
        ("q/k norm, rotary, cache", 192 + 96 + 3 * 32, 0),
        ("q/k norm, rotary, cache, int8", 192 + 96 + 3 * 24, 0),
        # 210 keys; Q in and out; 210 scores of 2 heads of 8, twice, and 2 for multiply and add.
        ("attention", 210 * 32 + 2 * 96, 4 * 210 * 16),
        ("attention, int8", 210 * 24 + 2 * 96, 4 * 210 * 16),
        ("silu * mul", 3 * 72 * 2, 0),
        ("linear 16 to 48", 2 * (16 * 48 + 3 * 64), 2 * 3 * 16 * 48),
        ("linear 16 to 48, W8A8", 16 * 48 + 2 * 3 * 64, 2 * 3 * 16 * 48),
    ],
)
def test_bytes_and_operations_of_a_kernel_are_worked_out_by_hand(
    kernel: str, num_bytes: int, operations: int
) -> None:
    (found,) = (one for one in cases_of(TINY, [DECODE]) if one.kernel == kernel)

    assert (found.num_bytes, found.operations) == (num_bytes, operations)


def test_decoders_have_the_same_weights_each_time() -> None:
    native, reference = native_kernels(), ReferenceKernels()
    decoders = [
        make_decoder(TINY, native),
        make_decoder(TINY, reference),
        make_decoder(TINY, native, AT_LOAD_SCHEME),
    ]
    tokens, desired = torch.arange(5), torch.tensor([4])

    with torch.inference_mode():
        logits = [
            decoder.forward(tokens, make_cache(TINY, PROMPT), PROMPT.layout(), logits_rows=desired)
            for decoder in decoders
        ]

    assert float(logits[0].norm()) > 0
    for other in logits[1:]:
        assert float((other - logits[0]).norm() / logits[0].norm()) < 0.05


def test_a_step_reads_the_layers_in_their_type_and_the_head_in_bfloat16() -> None:
    assert num_multiplied(TINY) == 2 * 1920 + 320
    assert weight_bytes(TINY) == 2 * (2 * 1920 + 320)
    assert weight_bytes(TINY, torch.int8) == 2 * 1920 + 2 * 320
    # K and V of a token: 2 · 2 layers · 8 · 2 bytes = 64.
    assert read_bytes(step(), TINY) == weight_bytes(TINY) + 210 * 64
    assert read_bytes(step(), TINY, torch.int8) == weight_bytes(TINY, torch.int8) + 210 * 64


def test_the_limit_of_a_step_is_memory_or_products_whatever_is_more() -> None:
    # 3 rows through everything; 210 scores of 2 layers with 2 heads of 8, for keys and values.
    operations = 2 * (3 * 4160 + 2 * 210 * 2 * 2 * 8)

    by_memory = floor_seconds(step(), TINY, read=1000.0, gemm=1e15)
    by_products = floor_seconds(step(), TINY, read=1e15, gemm=1000.0)

    assert by_memory == pytest.approx((8320 + 210 * 64) / 1000)
    assert by_products == pytest.approx(operations / 1000)


def test_only_the_last_token_of_a_prompt_goes_through_the_head() -> None:
    operations = 2 * (5 * 3840 + 320 + 2 * 15 * 2 * 2 * 8)

    limit = floor_seconds(step(PROMPT), TINY, read=1e15, gemm=1000.0)

    assert limit == pytest.approx(operations / 1000)


@pytest.mark.parametrize("has_reference", [True, False])
def test_steps_are_measured_in_float_in_w8a8_and_in_torch(has_reference: bool) -> None:
    native = native_kernels()

    found = measure_steps(
        "S",
        TINY,
        [DECODE, PROMPT],
        watch=ONCE,
        native=native,
        reference=ReferenceKernels() if has_reference else None,
    )

    assert [one.batch for one in found] == [DECODE, PROMPT]
    for one in found:
        assert min(one.native, one.native_gemm, one.native_int8) > 0
        assert (one.reference is not None) == has_reference


# ── the stopwatch ────────────────────────────────────────────────────────────────────────────


class FakeClock:
    """Time that passes only where a test lets it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, name: str, log: list[str], *taken_s: float) -> Callable[[], None]:
        """Takes so long each time; the last one goes on."""
        left = list(taken_s)

        def run() -> None:
            log.append(name)
            self.now_s += left.pop(0) if len(left) > 1 else left[0]

        return run


@pytest.mark.parametrize(("threads", "kind"), [(1, "thread_time"), (2, "perf_counter")])
def test_works_take_turns_and_the_median_counts(
    monkeypatch: pytest.MonkeyPatch, threads: int, kind: str
) -> None:
    clock, still, log = FakeClock(), FakeClock(), list[str]()
    for name in ("thread_time", "perf_counter"):
        monkeypatch.setattr(time, name, clock if name == kind else still)
    # The first of each is not counted.
    works = {"a": clock.work("a", log, 90, 1, 5, 2), "b": clock.work("b", log, 50, 7, 7, 70)}

    taken = Stopwatch(num_threads=threads, seconds=0).alternate(works)

    assert log == ["a", "b"] * 4
    assert taken == {"a": 2, "b": 7}


def test_a_work_that_is_to_find_its_data_in_the_caches_has_turns_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, log = FakeClock(), list[str]()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", lambda _: log.append("rest"))
    works = {"a": clock.work("a", log, 9, 9, 1, 3, 9, 2, 2, 9, 2), "b": clock.work("b", log, 4)}

    taken = Stopwatch(num_threads=2, seconds=0).alternate(works, in_a_row=2)

    assert log == ["a", "b", *["rest", *"aaa", "rest", *"bbb"] * 3]
    assert taken == {"a": 2, "b": 4}


def test_a_measurement_goes_on_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, log = FakeClock(), list[str]()
    monkeypatch.setattr(time, "perf_counter", clock)

    Stopwatch(num_threads=2, seconds=10).alternate({"a": clock.work("a", log, 1)})

    assert len(log) == 1 + 10


@pytest.mark.usefixtures("_tiny_models")
def test_the_limits_of_the_machine_are_measured() -> None:
    limits = measure_limits(ONCE, native_kernels())

    assert limits.read_bytes_per_s > 0
    assert limits.gemm_per_s > 0


# ── tables and files ─────────────────────────────────────────────────────────────────────────


def lines_of(table: Table) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    show(console, table)
    return re.sub(r"[│┃|]", " ", console.export_text())


def test_a_kernel_is_told_with_its_share_of_what_the_machine_can_do() -> None:
    # 500 kB in 1 ms: 0.5 GB/s, half of 1; 10 million in 1 ms: 10 GFLOP/s, 1 % of 1000.
    text = lines_of(kernel_table([CaseTimes("S", case(), 1e-3, 3e-3)], LIMITS))

    assert re.search(r"S +k +s +1,000\.0 +3,000\.0 +3\.0 +0\.5 +50 +10 +1\b", text)


def test_a_kernel_without_products_has_no_share_of_them() -> None:
    text = lines_of(kernel_table([CaseTimes("S", case(operations=0), 1e-3, 3e-3)], LIMITS))

    assert re.search(r"3\.0 +0\.5 +50 *\n", text)


def test_a_kernel_that_was_not_measured_in_torch_has_no_ratio() -> None:
    text = lines_of(kernel_table([CaseTimes("S", case(), 1e-3, None)], LIMITS))

    assert "1,000.0" in text
    assert "3,000.0" not in text


@pytest.mark.usefixtures("_tiny_models")
def test_a_step_is_told_with_its_products_its_limit_and_w8a8() -> None:
    slow = Limits(read_bytes_per_s=1e6, gemm_per_s=1e12)

    text = lines_of(step_table([step(), step(PROMPT, reference=None)], slow))

    # 21,760 bytes at 1 MB/s are 21.76 ms of 100; in W8A8 17,920 are 17.92 of 50.
    assert re.search(
        r"S +3 x 1 at 70 +100\.00 +60\.00 +40\.00 +300\.00 +3\.0 +21\.76 +22 +50\.00 +2\.00 +36\b",
        text,
    )
    assert re.search(r"prompt of 5 +100\.00 +60\.00 +40\.00 +8\.64 +9 +50\.00", text)


@pytest.mark.usefixtures("_tiny_models")
def test_the_file_has_all_figures_and_where_they_are_from(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kernels.json"

    write_json(
        path,
        kernels=[CaseTimes("S", case(), 1e-3, 3e-3)],
        steps=[step()],
        limits=LIMITS,
        settings={"variant": "auto"},
    )

    found = json.loads(path.read_text())
    assert found["settings"] == {"variant": "auto"}
    assert found["limits"] == {"read_bytes_per_s": 1e9, "gemm_per_s": 1e12}
    assert found["machine"]
    assert "git_commit" in found
    assert found["kernels"] == [
        {
            "model": "S",
            "kernel": "k",
            "shape": "s",
            "native_s": 1e-3,
            "reference_s": 3e-3,
            "bytes": 500_000,
            "operations": 10_000_000,
        }
    ]
    (one,) = found["steps"]
    assert one["native_int8_s"] == step().native_int8
    assert one["limit_s"] == pytest.approx(21_760 / 1e9)
    assert one["int8_read_s"] == pytest.approx(17_920 / 1e9)


# ── the command line ─────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("_tiny_models")
def test_a_run_shows_tables_and_writes_a_file(tmp_path: Path) -> None:
    native_kernels()  # skips where there are none
    out = tmp_path / "kernels.json"

    result = runner.invoke(
        app, ["--model", "S", "--threads", "1", "--seconds", "0", "--out", str(out)]
    )

    assert result.exit_code == 0, result.output
    assert "1 threads, CPU time; this machine reads" in result.output
    assert "attention, int8" in result.output
    found = json.loads(out.read_text())
    cases_run = [*cases_of(TINY, [DECODE, PROMPT]), *sampling_cases(*SAMPLED)]
    assert len(found["kernels"]) == len(cases_run)
    assert [one["batch"] for one in found["steps"]] == ["3 x 1 at 70", "prompt of 5"]


@pytest.mark.usefixtures("_tiny_models")
def test_one_kernel_can_be_measured_alone(tmp_path: Path) -> None:
    native_kernels()
    out = tmp_path / "kernels.json"

    options = ["--model", "S", "--threads", "1", "--seconds", "0", "--only", "silu", "--no-steps"]
    result = runner.invoke(app, [*options, "--out", str(out)])

    assert result.exit_code == 0, result.output
    found = json.loads(out.read_text())
    assert {one["kernel"] for one in found["kernels"]} == {"silu * mul"}
    assert found["steps"] == []


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--model", "L"], 2, "'L' is not S or M"),
        (["--threads", "0"], 2, "greater than or equal to 1"),
        (["--variant", "avx9"], 2, "TANDEM_KERNELS is 'avx9'"),
        (["--variant", "reference"], 1, "There are no native kernels to measure."),
    ],
    ids=["model", "threads", "variant", "nothing to measure"],
)
def test_an_impossible_measurement_is_reported_in_a_sentence(
    options: list[str], code: int, words: str
) -> None:
    result = runner.invoke(app, options)

    assert result.exit_code == code
    assert words in result.output + result.stderr


def test_help_has_examples() -> None:
    result = runner.invoke(app, ["--help"])

    assert result.exit_code == 0
    assert "python -m benchmarks.kernels --threads 1" in result.output
