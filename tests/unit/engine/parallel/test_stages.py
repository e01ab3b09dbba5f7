"""A model that ranks share gives the logits of one rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem_engine.parallel.plan import ParallelShape
from tests.unit.engine.native import native_kernels
from tests.unit.engine.parallel.ranks import Ranks, layout, one_rank

Make = Callable[..., Path]
TABLES = [range(8), range(8, 14), range(14, 20)]
PROMPTS = [
    [(7 * at + 3 * row) % 250 for at in range(count)] for row, count in enumerate((21, 9, 5))
]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen 2": ("Qwen2ForCausalLM", {"num_hidden_layers": 5, "vocab_size": 271}),
    "Qwen 3, tied": (
        "Qwen3ForCausalLM",
        {"num_hidden_layers": 4, "tie_word_embeddings": True, "vocab_size": 271},
    ),
    "Llama with all biases": (
        "LlamaForCausalLM",
        {"num_hidden_layers": 4, "attention_bias": True, "mlp_bias": True},
    ),
}
SHAPES = [
    ParallelShape(),
    ParallelShape(tp=2),
    ParallelShape(tp=4),
    ParallelShape(pp=2),
    ParallelShape(pp=4),
    ParallelShape(tp=2, pp=2),
    ParallelShape(tp=4, pp=4),
]
SHARED = [
    ParallelShape(tp=2, sp=True),
    ParallelShape(tp=4, sp=True),
    ParallelShape(tp=2, pp=2, sp=True),
    ParallelShape(tp=4, pp=4, sp=True),
]


def name_of(shape: ParallelShape) -> str:
    return f"tp{shape.tp}-pp{shape.pp}{'-sp' if shape.sp else ''}"


@pytest.fixture(params=["native", "reference"])
def kernels(request: pytest.FixtureRequest) -> str | None:
    if request.param == "native":
        native_kernels()
        return None
    return "reference"


@pytest.fixture(params=MODELS.values(), ids=list(MODELS))
def folder(request: pytest.FixtureRequest, make_checkpoint: Make) -> Path:
    architecture, overrides = request.param
    return make_checkpoint(architecture, **overrides)


def prefill(ranks: Ranks) -> list[Tensor | None]:
    """Two prompts at once, of 30 tokens; a chunk of the third follows by itself."""
    rows = [(len(prompt), 0, TABLES[row]) for row, prompt in enumerate(PROMPTS[:2])]
    shared = ranks.shape.sp
    return ranks.step(PROMPTS[0] + PROMPTS[1], layout(rows), [20, 29, 3], sequence_parallel=shared)


def mixed(ranks: Ranks) -> list[Tensor | None]:
    """Decodes of the first two, and the third prompt."""
    rows = [(1, 21, TABLES[0]), (1, 9, TABLES[1]), (5, 0, TABLES[2])]
    return ranks.step([11, 12, *PROMPTS[2]], layout(rows), [0, 1, 6])


def run(ranks: Ranks) -> tuple[Tensor, Tensor]:
    """Logits of a prefill step and of a mixed one."""
    found = []
    for results in (prefill(ranks), mixed(ranks)):
        assert results[1:] == [None] * (ranks.shape.tp - 1)
        assert results[0] is not None
        found.append(results[0])
    return found[0], found[1]


def expected(folder: Path, **settings: Any) -> tuple[Tensor, Tensor]:
    """The same of one rank in the ordinary way."""
    decoder, cache = one_rank(Ranks(folder, ParallelShape(), **settings))
    rows = [(len(prompt), 0, TABLES[row]) for row, prompt in enumerate(PROMPTS[:2])]
    later = [(1, 21, TABLES[0]), (1, 9, TABLES[1]), (5, 0, TABLES[2])]
    with torch.inference_mode():
        first = decoder.forward(
            torch.tensor(PROMPTS[0] + PROMPTS[1]),
            cache,
            layout(rows),
            logits_rows=torch.tensor([20, 29, 3]),
        )
        second = decoder.forward(
            torch.tensor([11, 12, *PROMPTS[2]]),
            cache,
            layout(later),
            logits_rows=torch.tensor([0, 1, 6]),
        )
    return first, second


def assert_alike(found: tuple[Tensor, Tensor], desired: tuple[Tensor, Tensor], most: float) -> None:
    for one, other in zip(found, desired, strict=True):
        assert one.shape == other.shape
        assert float((one - other).norm() / other.norm()) < most


@pytest.mark.parametrize("shape", [*SHAPES, *SHARED], ids=name_of)
def test_ranks_give_the_logits_of_one(
    folder: Path, kernels: str | None, shape: ParallelShape
) -> None:
    ranks = Ranks(folder, shape, kernels=kernels)

    found = run(ranks)

    desired = expected(folder, kernels=kernels)
    assert_alike(found, desired, 1e-5)
    for one, other in zip(found, desired, strict=True):
        assert torch.equal(one.argmax(-1), other.argmax(-1))


@pytest.mark.parametrize("shape", [ParallelShape(tp=4), *SHARED[:3]], ids=name_of)
@pytest.mark.parametrize("kv_dtype", [None, torch.int8], ids=["bf16 cache", "int8 cache"])
def test_in_bfloat16_ranks_stay_as_near_as_rounding_allows(
    make_checkpoint: Make, kernels: str | None, shape: ParallelShape, kv_dtype: torch.dtype | None
) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", num_hidden_layers=4, dtype="bfloat16")

    found = run(Ranks(folder, shape, kernels=kernels, kv_dtype=kv_dtype))

    assert_alike(found, expected(folder, kernels=kernels, kv_dtype=kv_dtype), 0.05)


def test_a_layer_is_two_collectives_and_a_step_three_more(make_checkpoint: Make) -> None:
    ranks = Ranks(make_checkpoint("Qwen2ForCausalLM"), ParallelShape(tp=2))

    mixed(ranks)

    assert ranks.names == [["all_reduce"] * (1 + 2 * 2) + ["gather_columns"]] * 2


def test_sequence_parallel_layers_scatter_and_gather(make_checkpoint: Make) -> None:
    ranks = Ranks(make_checkpoint("Qwen2ForCausalLM"), ParallelShape(tp=2, sp=True))

    prefill(ranks)

    layer = ["all_gather", "reduce_scatter"] * 2
    last = ["all_gather", "all_reduce", "all_reduce"]  # for the rows of the logits alone
    assert ranks.names == [["reduce_scatter", *layer, *last, "gather_columns"]] * 2


def test_rows_that_ranks_cannot_share_evenly_are_padded(
    make_checkpoint: Make, kernels: str | None
) -> None:
    folder = make_checkpoint("Qwen3ForCausalLM", num_hidden_layers=3)
    ranks = Ranks(folder, ParallelShape(tp=4, sp=True), kernels=kernels)
    decoder, cache = one_rank(Ranks(folder, ParallelShape(), kernels=kernels))
    rows = layout([(5, 0, TABLES[2])])

    (logits, *_) = ranks.step(PROMPTS[2], rows, [4], sequence_parallel=True)

    with torch.inference_mode():
        desired = decoder.forward(
            torch.tensor(PROMPTS[2]), cache, rows, logits_rows=torch.tensor([4])
        )
    assert logits is not None
    torch.testing.assert_close(logits, desired, atol=1e-4, rtol=1e-4)


def test_a_decode_row_under_sequence_parallelism_is_a_bug(make_checkpoint: Make) -> None:
    ranks = Ranks(make_checkpoint("Qwen2ForCausalLM"), ParallelShape(tp=2, sp=True))
    rows = [(1, 21, TABLES[0]), (9, 0, TABLES[1])]

    with pytest.raises(AssertionError, match=r"1 rows of the step decode.*prefill alone"):
        ranks.step(list(range(10)), layout(rows), [0], sequence_parallel=True)


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[5], SHARED[0]], ids=name_of)
def test_a_step_that_wants_no_logits_writes_the_cache_all_the_same(
    make_checkpoint: Make, kernels: str | None, shape: ParallelShape
) -> None:
    folder = make_checkpoint("Qwen2ForCausalLM")
    some, none = (Ranks(folder, shape, kernels=kernels) for _ in range(2))
    rows = layout([(21, 0, TABLES[0])])

    some.step(PROMPTS[0], rows, [20], sequence_parallel=shape.sp)
    (logits, *others) = none.step(PROMPTS[0], rows, [], sequence_parallel=shape.sp)

    assert logits is not None
    assert logits.shape == (0, some.decoders[0].config.vocab_size)
    assert others == [None] * (shape.tp - 1)
    for one, other in zip(none.caches, some.caches, strict=True):
        assert torch.equal(one.blocks, other.blocks)


def test_a_step_that_is_given_up_leaves_nothing_behind(
    make_checkpoint: Make, kernels: str | None
) -> None:
    """A rank whose peer has died drops its step in the middle, and computes the next one."""
    folder = make_checkpoint("Qwen2ForCausalLM")
    ranks = Ranks(folder, ParallelShape(tp=2), kernels=kernels)
    rows = layout([(21, 0, TABLES[0])])
    with torch.inference_mode():
        for decoder, cache in zip(ranks.decoders, ranks.caches, strict=True):
            begun = decoder.stages(
                torch.tensor(PROMPTS[0]), cache, rows, logits_rows=torch.tensor([20])
            )
            next(begun)
            next(begun)
            begun.close()

    found = run(ranks)

    assert_alike(found, expected(folder, kernels=kernels), 1e-5)


@pytest.mark.parametrize("shape", [SHAPES[1], SHAPES[3]], ids=name_of)
def test_a_rank_of_several_gives_no_logits_by_itself(
    make_checkpoint: Make, shape: ParallelShape
) -> None:
    ranks = Ranks(make_checkpoint("Qwen2ForCausalLM"), shape)

    with pytest.raises(AssertionError, match="ranks that share a model compute its stages"):
        ranks.decoders[0].forward(
            torch.tensor(PROMPTS[0]),
            ranks.caches[0],
            layout([(21, 0, TABLES[0])]),
            logits_rows=torch.tensor([20]),
        )
