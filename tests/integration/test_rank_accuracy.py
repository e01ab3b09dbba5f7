"""Ranks answer as many of tandem-tiny's 500 questions as one rank does, in bfloat16 and in W8A8.

With steps in two halves they answer each of them with the tokens of whole steps.
"""

from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tandem_engine.api.config import Quantization
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.registry import open_device
from tandem_engine.model.decoder import allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.runner.caches import CacheSizes
from tandem_engine.runner.executor import Executor, LocalExecutor
from tandem_engine.text.codec import load_codec
from tests.integration.bench import BLOCK_SIZE, END, MAX_SEQ_LEN, Bench, mixed
from tests.integration.forced_cuts import forced_cuts, no_cuts
from tests.integration.four_shares import write_four_shares
from tests.integration.test_micro_batch_combinations import num_splits
from tests.integration.test_ranks import ranks_of
from tests.tiny import LEAST_ACCURACY, MAX_ANSWER_TOKENS, TINY, accuracy, held_out, misses

pytestmark = pytest.mark.slow

MOST_LOST: Final = 0.005
NUM_BLOCKS: Final = 512
SHAPES: Final = {
    "tp2": ParallelShape(tp=2),
    "pp2": ParallelShape(pp=2),
    "pp4": ParallelShape(pp=4),
    "tp2-pp2": ParallelShape(tp=2, pp=2),
    "tp2-sp": ParallelShape(tp=2, sp=True),
    "dp2": ParallelShape(dp=2),
    "tp2-dp2": ParallelShape(tp=2, dp=2),
    "tp4": ParallelShape(tp=4),
}
CUT_SHAPES: Final = {
    "tp2": ParallelShape(tp=2),
    "tp2-pp2": ParallelShape(tp=2, pp=2),
    "tp2-sp": ParallelShape(tp=2, sp=True),
    "tp2-dp2": ParallelShape(tp=2, dp=2),
}
"""Shapes of which ranks have something to hide."""


def one_rank(quantization: Quantization) -> Executor:
    runtime = open_device("cpu")
    decoder = load_decoder(
        TINY, runtime=runtime, quantization=quantization, max_positions=MAX_SEQ_LEN
    )
    layout = decoder.cache_layout(BLOCK_SIZE)
    return LocalExecutor(decoder, allocate_kv_cache(layout, num_blocks=NUM_BLOCKS, device="cpu"))


def answers(executor: Executor, *, dp: int = 1) -> dict[int, str]:
    """Greedy answers to all questions at once."""
    codec = load_codec(TINY)
    return {
        name: codec.decode([token for token in tokens if token != END])
        for name, tokens in answered(executor, dp=dp).items()
    }


def answered(executor: Executor, *, dp: int = 1) -> dict[int, list[int]]:
    """Tokens of the greedy answers to all questions at once."""
    codec = load_codec(TINY)
    requests = [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple(codec.encode_chat(each.messages)),
            sampling=SamplingParams(max_tokens=MAX_ANSWER_TOKENS, temperature=0.0),
            max_new_tokens=MAX_ANSWER_TOKENS,
            stop_token_ids=frozenset({END}),
            seeds=(0,),
        )
        for number, each in enumerate(held_out())
    ]
    said = Bench(mixed(256), num_blocks=NUM_BLOCKS, executor=executor, dp=dp).run(requests).tokens
    return {int(name): list(tokens) for name, tokens in said.items()}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """tandem-tiny by the ranks of tp that share it; more than two have a form of their own."""
    four = write_four_shares(tmp_path_factory.mktemp("four-shares") / "tandem-tiny")
    return {1: TINY, 2: TINY, 4: four}


@cache
def share_of_one_rank(quantization: Quantization) -> float:
    return accuracy(held_out(), answers(one_rank(quantization)))


@pytest.mark.parametrize("quantization", ["none", "w8a8"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_ranks_answer_as_many_as_one_but_for_half_a_point(
    checkpoints: dict[int, Path], shape: ParallelShape, quantization: Quantization
) -> None:
    ranks = ranks_of(
        shape,
        sizes=CacheSizes(num_blocks=NUM_BLOCKS),
        model_path=str(checkpoints[shape.tp]),
        dtype="auto",
        quantization=quantization,
    )
    with ranks as (_, executor):
        said = answers(executor, dp=shape.dp)

    found, of_one = accuracy(held_out(), said), share_of_one_rank(quantization)
    assert of_one >= LEAST_ACCURACY - MOST_LOST
    assert found >= of_one - MOST_LOST, misses(held_out(), said)


@pytest.mark.parametrize("quantization", ["none", "w8a8"])
@pytest.mark.parametrize("shape", CUT_SHAPES.values(), ids=list(CUT_SHAPES))
def test_cut_steps_answer_all_questions_with_the_tokens_of_whole_ones(
    shape: ParallelShape, quantization: Quantization
) -> None:
    sizes = CacheSizes(num_blocks=NUM_BLOCKS)
    ranks = ranks_of(shape, sizes=sizes, dtype="auto", quantization=quantization, micro_batch=True)
    with ranks as (_, executor):
        with no_cuts():
            whole = answered(executor, dp=shape.dp)
        before = num_splits(executor)
        with forced_cuts():
            cut = answered(executor, dp=shape.dp)
        count = num_splits(executor) - before

    assert count > 0
    assert cut == whole
