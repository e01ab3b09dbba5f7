"""The arithmetic of benchmarks.peers: shapes, limits, goals, figures."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers.figures import (
    EngineFigures,
    RowFigures,
    best_roofline,
    process_figures,
    row_figures,
    tokens_per_s,
    tpots_s,
    ttfts_s,
)
from benchmarks.peers.goals import goal
from benchmarks.peers.roofline import (
    Roofline,
    rate_at,
    row_limit,
    row_limit_s,
    sizes_of,
    tokens_counted,
    weight_bytes,
)
from benchmarks.peers.rows import parse_row
from benchmarks.peers.shapes import SHAPES, ModelShape, find_shape
from benchmarks.peers.turns import Sample, TurnResult
from benchmarks.serving.case import Case
from benchmarks.serving.errors import WrongUsage
from tandem_engine.simulate.workload import Shape

# 1 layer; qkv (4+2+2)×2, output 2×4, gate and up 6×2, down 2×3: 16+8+12+6 = 42; head 10×2 = 20.
TINY = ModelShape(
    name="T",
    hidden_size=2,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_size=2,
    intermediate_size=3,
    vocab_size=10,
)
ROOF = Roofline(bandwidth=1000.0, bf16={16: 1e5, 512: 2e5}, w8a8={16: 2e5, 512: 4e5})
# Products that cost nothing: only memory is left.
SLOW_MEMORY = Roofline(bandwidth=1000.0, bf16={512: 1e12}, w8a8={512: 1e12})
# Memory that costs nothing: only products are left.
SLOW_PRODUCTS = Roofline(bandwidth=1e15, bf16={512: 100.0}, w8a8={512: 200.0})


def sample(row: str, *times_s: Sequence[float]) -> Sample:
    return Sample(row=parse_row(row), times_s=times_s)


def result(engine: str, *samples: Sample, repeat: int = 0, **more: object) -> TurnResult:
    content = {"model": "T", "weights": "bf16", "settings": {}, "samples": samples} | more
    return TurnResult(engine=engine, repeat=repeat, **content)  # type: ignore[arg-type]


def test_a_shape_counts_its_weights_and_its_cache() -> None:
    assert TINY.gemms == ((8, 2), (2, 4), (6, 2), (2, 3))
    assert TINY.linear_parameters == 42
    assert TINY.head_parameters == 20
    assert TINY.num_parameters == 42 + 20 + 2 * (2 + 2) + 2
    assert TINY.kv_bytes_per_token == 2 * 2 * 2


@pytest.mark.parametrize(("name", "millions"), [("S", 29.4), ("M", 473.2)])
def test_s_and_m_have_the_sizes_of_the_goals(name: str, millions: float) -> None:
    assert round(SHAPES[name].num_parameters / 1e6, 1) == millions


def test_an_unknown_model_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(WrongUsage, match="Unknown model 'L'; it must be one of S, M"):
        find_shape("L")


def test_a_step_reads_all_weights_and_in_8_bit_the_head_alone_keeps_16() -> None:
    assert weight_bytes(TINY, "bf16") == 2 * 62
    assert weight_bytes(TINY, "w8a8") == 42 + 2 * 20


def test_one_sequence_takes_as_long_as_its_bytes_take_to_be_read() -> None:
    # Prefill: weights and 3 tokens. Then two steps, with 4 and 5 tokens in the cache.
    seconds = row_limit_s(TINY, parse_row("1x3x3"), SLOW_MEMORY, "bf16")

    assert seconds == pytest.approx((124 + 3 * 8 + 124 + 4 * 8 + 124 + 5 * 8) / 1000)


def test_a_prompt_takes_as_long_as_its_products_and_pairs() -> None:
    # 4 tokens through 42 weights, one through the head, 1+2+3+4 pairs of 2 heads of 2 values.
    seconds = row_limit_s(TINY, parse_row("1x4x1"), SLOW_PRODUCTS, "bf16")

    assert seconds == pytest.approx((2 * 42 * 4 + 2 * 20 + 4 * 4 * 10) / 100)


def test_in_8_bit_the_layers_alone_are_faster() -> None:
    seconds = row_limit_s(TINY, parse_row("1x4x1"), SLOW_PRODUCTS, "w8a8")

    assert seconds == pytest.approx((2 * 42 * 4) / 200 + (2 * 20 + 4 * 4 * 10) / 100)


def test_the_limit_counts_output_tokens_but_prompt_tokens_of_a_row_that_is_all_prompt() -> None:
    assert tokens_counted(parse_row("16x32x64")) == 16 * 64
    assert tokens_counted(parse_row("2x2048x1")) == 2 * 2048
    row = parse_row("1x4x1")
    seconds = row_limit_s(TINY, row, SLOW_PRODUCTS, "bf16")
    assert seconds is not None
    assert row_limit(TINY, row, SLOW_PRODUCTS, "bf16") == pytest.approx(4 / seconds)


def test_a_type_whose_products_were_not_measured_has_no_limit() -> None:
    roof = Roofline(bandwidth=1000.0, bf16={512: 1.0}, w8a8={})

    assert row_limit(TINY, parse_row("1x4x1"), roof, "w8a8") is None


def test_one_sequence_on_m_is_bound_by_memory() -> None:
    roof = Roofline(bandwidth=37e9, bf16={512: 436e9}, w8a8={512: 820e9})
    row = parse_row("1x32x64")

    # 947 MB of weights and 4 to 11 MB of cache a step; 505 MB in 8 bit.
    assert row_limit(SHAPES["M"], row, roof, "bf16") == pytest.approx(37.9, abs=0.1)
    assert row_limit(SHAPES["M"], row, roof, "w8a8") == pytest.approx(70.7, abs=0.5)


def test_a_long_prompt_on_m_is_bound_by_products_and_attention() -> None:
    roof = Roofline(bandwidth=37e9, bf16={512: 436e9}, w8a8={512: 820e9})
    row = parse_row("1x2048x1")

    assert row_limit(SHAPES["M"], row, roof, "bf16") == pytest.approx(391, abs=5)


@pytest.mark.parametrize(("rows", "rate"), [(1, 1e5), (16, 1e5), (17, 2e5), (512, 2e5), (999, 2e5)])
def test_a_rate_is_that_of_the_next_larger_size(rows: int, rate: float) -> None:
    assert rate_at(ROOF.bf16, rows) == rate


def test_products_are_measured_at_the_widths_of_the_rows_and_of_a_prompt() -> None:
    rows = tuple(map(parse_row, ("1x32x64", "16x32x64", "8x9x9")))

    assert sizes_of(rows) == [8, 16, 512]


@given(
    concurrency=st.integers(1, 64),
    num_input=st.integers(1, 200),
    num_output=st.integers(1, 40),
    factor=st.floats(1.0, 10.0),
)
def test_a_better_machine_never_has_a_lower_limit(
    concurrency: int, num_input: int, num_output: int, factor: float
) -> None:
    row = Case(concurrency, Shape(num_input, num_output))
    better = Roofline(
        bandwidth=ROOF.bandwidth * factor,
        bf16={size: rate * factor for size, rate in ROOF.bf16.items()},
        w8a8={},
    )

    before, after = row_limit(TINY, row, ROOF, "bf16"), row_limit(TINY, row, better, "bf16")
    assert before is not None
    assert after == pytest.approx(before * factor)


@pytest.mark.parametrize(
    ("model", "row", "weights", "ratio"),
    [
        ("S", "1x32x64", "bf16", 1.0),
        ("M", "1x32x64", "bf16", 1.15),
        ("S", "16x32x64", "bf16", 1.25),
        ("M", "16x256x64", "bf16", 1.25),
        ("M", "1x2048x1", "bf16", 1.1),
        ("S", "1x32x64", "w8a8", 1.3),
        ("M", "1x2048x1", "w8a8", 1.2),
    ],
)
def test_the_goals_are_those_of_the_comparison(
    model: str, row: str, weights: str, ratio: float
) -> None:
    assert goal(model, parse_row(row), weights) == ratio


def test_a_sample_tells_throughput_ttft_and_tpot() -> None:
    seen = sample("2x8x3", [1.0, 2.0, 3.0], [1.5, 2.0, 4.0])

    assert tokens_per_s(seen) == 6 / 4.0
    assert ttfts_s([seen]) == [1.0, 1.5]
    assert tpots_s([seen]) == [1.0, 1.25]
    assert tpots_s([sample("1x8x1", [1.0])]) == []


def test_figures_have_medians_the_spread_and_the_share_of_the_limit() -> None:
    results = [
        result("tandem", sample("1x4x1", [1.0]), sample("1x4x1", [2.0])),
        result("tandem", sample("1x4x1", [4.0]), repeat=1),
        result("openvino", sample("1x4x1", [0.5])),
        result("openvino", sample("1x4x1", [0.1]), weights="w8a8"),
    ]

    row = parse_row("1x4x1")
    (figures,) = row_figures(
        results, TINY, [row], weights="bf16", engines=["tandem", "openvino"], roof=SLOW_PRODUCTS
    )

    own, peer = figures.engines
    limit = row_limit(TINY, row, SLOW_PRODUCTS, "bf16")
    assert limit is not None
    assert (own.tokens_per_s, own.lowest, own.highest, own.num_samples) == (2.0, 1.0, 4.0, 3)
    assert own.ttft_p50_ms == 2000
    assert own.tpot_p50_ms is None
    assert own.share_of_limit == pytest.approx(2.0 / limit)
    assert peer.tokens_per_s == 8.0
    assert figures.tandem_ratio == 0.25


def test_the_best_peer_is_the_fastest_that_is_not_tandem() -> None:
    def row(**speeds: float | None) -> RowFigures:
        return RowFigures(
            model="M",
            weights="bf16",
            row=parse_row("1x32x64"),
            limit=None,
            goal=1.15,
            engines=tuple(
                EngineFigures(engine=name, tokens_per_s=speed) for name, speed in speeds.items()
            ),
        )

    three = row(tandem=30.0, openvino=10.0, llamacpp=20.0, vllm=None)
    assert three.best_peer is three.engines[2]
    assert three.tandem_ratio == 1.5
    assert three.ratio(three.engines[3]) is None
    assert row(tandem=30.0).tandem_ratio is None
    assert row(openvino=30.0).tandem_ratio is None


def test_a_row_that_failed_says_why() -> None:
    failed = result("vllm", error="vLLM: no memory")

    (figures,) = row_figures(
        [failed],
        TINY,
        [parse_row("1x4x1")],
        weights="bf16",
        engines=["vllm", "llamacpp"],
        roof=None,
    )

    assert [each.reason for each in figures.engines] == ["vLLM: no memory", "not compared"]


def test_load_time_and_memory_are_medians_over_the_repeats() -> None:
    seen = process_figures(
        [
            result("tandem", load_s=load_s, peak_bytes=peak << 20, version="1", repeat=repeat)
            for repeat, (load_s, peak) in enumerate([(1.0, 300), (9.0, 100), (2.0, 200)])
        ]
        + [result("vllm", error="gone"), result("vllm", error="gone", repeat=1)]
    )

    assert [(each.engine, each.load_s, each.peak_mib) for each in seen] == [
        ("tandem", 2.0, 200.0),
        ("vllm", None, None),
    ]
    assert seen[1].errors == ("gone",)


def test_the_roof_of_a_run_is_the_best_of_its_repeats() -> None:
    roofs = [Roofline(bandwidth=value, bf16={16: value}, w8a8={}) for value in (3.0, 1.0, 2.0)]

    assert best_roofline(roofs) == Roofline(bandwidth=3.0, bf16={16: 3.0}, w8a8={})
    assert best_roofline([]) is None
