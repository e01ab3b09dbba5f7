"""The plan of a replica of several ranks: what each of them holds."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_engine.api.errors import ConfigError
from tandem_engine.parallel.plan import (
    ParallelShape,
    RankPlan,
    plan_rank,
    stage_layers,
    tp_degrees,
    whole_plan,
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Those of Qwen3-14B, unless others are given."""

    num_layers: int = 40
    num_heads: int = 40
    num_kv_heads: int = 8
    head_dim: int = 128
    intermediate_size: int = 17408
    vocab_size: int = 151_936


@st.composite
def models(draw: st.DrawFn) -> Sizes:
    kv_heads, group = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    return Sizes(
        num_layers=draw(st.integers(1, 50)),
        num_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        head_dim=draw(st.sampled_from([2, 16, 128])),
        intermediate_size=draw(st.integers(1, 24)) * 16,
        vocab_size=draw(st.integers(1, 3000)),
    )


@st.composite
def cuts(draw: st.DrawFn) -> tuple[Sizes, ParallelShape]:
    model = draw(models())
    return model, ParallelShape(
        tp=draw(st.sampled_from(tp_degrees(model))),
        pp=draw(st.integers(1, min(8, model.num_layers))),
        dp=draw(st.integers(1, 3)),
    )


def plans(model: Sizes, shape: ParallelShape) -> list[RankPlan]:
    return [plan_rank(shape, model, rank) for rank in range(shape.world_size)]


def joined(parts: Iterable[range]) -> list[int]:
    return [at for part in parts for at in part]


@given(cuts())
def test_slices_of_a_tp_group_cover_every_tensor_exactly(cut: tuple[Sizes, ParallelShape]) -> None:
    model, shape = cut

    for first in range(0, shape.world_size, shape.tp):
        group = [plan_rank(shape, model, rank) for rank in shape.tp_group(first)]

        assert joined(one.heads for one in group) == list(range(model.num_heads))
        query_width = model.num_heads * model.head_dim
        assert joined(one.query_rows for one in group) == list(range(query_width))
        assert joined(one.intermediate for one in group) == list(range(model.intermediate_size))
        assert joined(one.vocab for one in group) == list(range(model.vocab_size))
        assert sum(one.adds_bias for one in group) == 1


@given(cuts())
def test_each_kv_head_is_held_equally_often_and_by_the_ranks_that_read_it(
    cut: tuple[Sizes, ParallelShape],
) -> None:
    model, shape = cut
    group = [plan_rank(shape, model, rank) for rank in shape.tp_group(0)]

    held = Counter(joined(one.kv_heads for one in group))

    copies = max(1, shape.tp // model.num_kv_heads)
    assert held == dict.fromkeys(range(model.num_kv_heads), copies)
    for one in group:
        # Query head h reads KV head h // (heads / kv_heads), in the model and on the rank.
        per_kv, own = model.num_heads // model.num_kv_heads, len(one.heads) // len(one.kv_heads)
        for at, head in enumerate(one.heads):
            assert one.kv_heads[at // own] == head // per_kv
        start, stop = one.kv_heads.start, one.kv_heads.stop
        assert one.kv_rows == range(start * model.head_dim, stop * model.head_dim)


@given(cuts())
def test_stages_cover_all_layers_in_order(cut: tuple[Sizes, ParallelShape]) -> None:
    model, shape = cut

    for rank in range(shape.tp):
        stages = [plan_rank(shape, model, each) for each in shape.pp_group(rank)]

        assert joined(stage.layers for stage in stages) == list(range(model.num_layers))
        assert [stage.is_first_stage for stage in stages] == [True] + [False] * (shape.pp - 1)
        assert [stage.is_last_stage for stage in stages] == [False] * (shape.pp - 1) + [True]
        counts = [len(stage.layers) for stage in stages]
        assert counts[-1] == min(counts) >= max(counts) - 1


@given(cuts())
def test_logits_of_all_ranks_are_of_one_width_and_padded_at_the_end_alone(
    cut: tuple[Sizes, ParallelShape],
) -> None:
    model, shape = cut
    group = [plan_rank(shape, model, rank) for rank in shape.tp_group(0)]

    (width,) = {one.vocab_width for one in group}

    assert [one.vocab.start for one in group] == [rank * width for rank in range(shape.tp)]
    assert all(len(one.vocab) == width for one in group[:-1])
    assert 0 < len(group[-1].vocab) <= width


@given(cuts())
def test_groups_hold_each_rank_once_and_are_numbered_as_megatron_does(
    cut: tuple[Sizes, ParallelShape],
) -> None:
    model, shape = cut

    for one in plans(model, shape):
        place = {"tp_rank": one.tp_rank, "pp_rank": one.pp_rank, "dp_rank": one.dp_rank}
        assert shape.rank_of(**place) == one.rank
        assert shape.tp_group(one.rank)[one.tp_rank] == one.rank
        assert shape.pp_group(one.rank)[one.pp_rank] == one.rank
        assert shape.dp_group(one.rank)[one.dp_rank] == one.rank
        assert all(
            plan_rank(shape, model, other).layers == one.layers
            for other in shape.dp_group(one.rank)
        )


def test_qwen3_14b_on_eight_cards_has_one_kv_head_each() -> None:
    plan = plan_rank(ParallelShape(tp=8), Sizes(), 3)

    assert (plan.heads, plan.kv_heads) == (range(15, 20), range(3, 4))
    assert plan.intermediate == range(3 * 2176, 4 * 2176)
    assert plan.vocab == range(3 * 18992, 4 * 18992)


def test_kv_heads_are_replicated_where_there_are_more_ranks() -> None:
    found = [plan_rank(ParallelShape(tp=4), Sizes(num_kv_heads=2), rank) for rank in range(4)]

    assert [list(one.kv_heads) for one in found] == [[0], [0], [1], [1]]


def test_layers_that_are_left_over_go_to_the_inner_stages() -> None:
    assert [len(layers) for layers in stage_layers(10, 4)] == [2, 3, 3, 2]
    assert [len(layers) for layers in stage_layers(11, 4)] == [3, 3, 3, 2]
    assert [len(layers) for layers in stage_layers(3, 2)] == [2, 1]


def test_one_rank_holds_everything() -> None:
    plan, model = whole_plan(Sizes()), Sizes()

    assert plan.layers == range(40)
    assert len(plan.vocab) == plan.vocab_width == model.vocab_size
    assert plan.is_first_stage
    assert plan.is_last_stage


@pytest.mark.parametrize(
    ("shape", "world_size", "message"),
    [
        (ParallelShape(tp=0), None, r"parallelism\.tp is 0; it must be 1 or more"),
        (
            ParallelShape(tp=2, pp=2),
            8,
            r"worldSize is 8, but tp 2 · pp 2 · dp 1 are 4 ranks; set worldSize to 4",
        ),
        (ParallelShape(sp=True), None, r"sp is true, but tp is 1.* set tp to 2 or more"),
    ],
)
def test_degrees_that_do_not_go_together_are_refused(
    shape: ParallelShape, world_size: int | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        shape.check(world_size)


@pytest.mark.parametrize(
    ("shape", "model", "message"),
    [
        (ParallelShape(tp=3), {}, r"tp is 3, but .* 40 attention heads .* tp 1, 2, 4, 8\."),
        (
            ParallelShape(tp=4),
            {"num_heads": 12, "num_kv_heads": 6},
            r"tp is 4, but .* 6 key-value heads can neither .* tp 1, 2\.",
        ),
        (ParallelShape(tp=8), {"intermediate_size": 100}, r"intermediate_size 100 .* tp 1, 2, 4\."),
        (ParallelShape(tp=8), {"vocab_size": 10}, r"10 tokens are too few for 8 ranks"),
        (ParallelShape(pp=41), {}, r"pp is 41, but the model has 40 layers; set pp to 40 or less"),
    ],
)
def test_a_model_that_cannot_be_cut_is_refused_with_the_degrees_that_would_do(
    shape: ParallelShape, model: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_rank(shape, Sizes(**model), 0)


def test_a_rank_beyond_the_world_is_refused() -> None:
    with pytest.raises(ConfigError, match="rank 2 is not one of 0 to 1"):
        plan_rank(ParallelShape(tp=2), Sizes(), 2)
