"""Log-probabilities of prompts: those of transformers, however a prompt is cut and computed."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.output import PromptLogprobs, join_prompt_logprobs
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.registry import open_device
from tandem_engine.kvcache.capacity import MAX_SCORED_ROWS
from tandem_engine.model.decoder import Decoder, allocate_host_cache, allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.runner.caches import CacheSizes
from tandem_engine.runner.executor import LocalExecutor
from tandem_engine.sampling.token_scores import TokenScorer
from tests.integration.bench import (
    BLOCK_SIZE,
    HOST_BLOCKS,
    MAX_SEQ_LEN,
    ROOMY,
    SCARCE,
    SCHEDULES,
    Bench,
    Outcome,
    Tokens,
    all_free,
    conversation,
    crowd,
    mixed,
    request,
    standard,
    truth,
    with_async_scheduling,
)
from tests.integration.forced_cuts import forced_cuts
from tests.integration.test_micro_batch_combinations import LastAgain, num_splits
from tests.integration.test_ranks import assert_same, ranks_of
from tests.tiny import TINY

NUM_TOP: Final = 5
ATOL: Final = 1e-4
"""Of a log-probability in float32: the terms of its sums come in another order."""
DP: Final = 2


def scoring(requests: Sequence[Request], num_top: int = NUM_TOP) -> list[Request]:
    """The same requests, with log-probabilities of their prompts."""
    return [
        replace(one, sampling=replace(one.sampling, prompt_logprobs=num_top)) for one in requests
    ]


@cache
def reference() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)


@cache
def expected(prompt: Tokens) -> Tensor:
    """Log-probabilities at each position, by transformers: [tokens − 1, vocabulary]."""
    with torch.inference_mode():
        logits: Tensor = reference()(torch.tensor([prompt])).logits[0, :-1]
        return logits.log_softmax(dim=-1)


def assert_of(prompt: Tokens, parts: Sequence[PromptLogprobs], num_top: int = NUM_TOP) -> None:
    """The parts are the log-probabilities of the whole prompt, each token's once."""
    if len(prompt) == 1:
        assert not parts
        return
    found = join_prompt_logprobs(parts)
    assert found.token_ids == prompt[1:]
    table = expected(prompt)
    own = table.gather(1, torch.tensor(prompt[1:]).unsqueeze(1))
    assert torch.allclose(torch.tensor(found.logprobs), own.squeeze(1), atol=ATOL, rtol=0)
    likelier = (table > own + ATOL).sum(1), (table >= own - ATOL).sum(1)
    ranks = torch.tensor(found.ranks)
    assert ((likelier[0] < ranks) & (ranks <= likelier[1])).all()
    best = table.topk(num_top).values
    tops = [found.top(at) for at in range(len(found))]
    values = torch.tensor([[value for _, value in of_one] for of_one in tops])
    assert torch.allclose(values, best, atol=ATOL, rtol=0)
    ids = torch.tensor([[token_id for token_id, _ in of_one] for of_one in tops])
    assert torch.allclose(table.gather(1, ids), best, atol=ATOL, rtol=0)


def assert_all_of(requests: Sequence[Request], outcome: Outcome) -> None:
    for one in requests:
        assert_of(one.prompt_token_ids, outcome.prompt_logprobs.get(one.sequences[0], []))
    assert outcome.prompt_logprobs.keys() <= {one.sequences[0] for one in requests}
    assert all_free(outcome.stats)


@pytest.mark.parametrize("chunk", [1, 7, 0], ids=["1 token", "7 tokens", "whole"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_chunks_of_any_size_give_those_of_transformers(chunk: int, *, is_async: bool) -> None:
    schedule = mixed(512, split={"prefill_chunk_size": chunk})
    requests = scoring([request("r", conversation(20)[:200]), request("s", conversation(3))])
    if is_async:
        schedule = with_async_scheduling(schedule)

    outcome = Bench(schedule).run(requests)

    assert_all_of(requests, outcome)
    assert (len(outcome.prompt_logprobs["r"]) > 20) == (chunk > 0)


@pytest.mark.parametrize("name", ["static", "chunked, 48 tokens", "splitfuse, 48 tokens"])
def test_they_change_no_token_and_are_whole_beside_others(name: str) -> None:
    mixture = [
        one for pair in zip(scoring(crowd())[::2], crowd()[1::2], strict=False) for one in pair
    ]

    outcome = Bench(SCHEDULES[name]).run(mixture, apart=2)

    assert_same(outcome, truth())
    assert_all_of([one for one in mixture if one.sampling.prompt_logprobs is not None], outcome)


def test_logits_are_there_in_slices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    score = TokenScorer.score

    def counted(scorer: TokenScorer, logits: Tensor, token_ids: Tensor, width: int) -> Tensor:
        counts.append(len(logits))
        return score(scorer, logits, token_ids, width)

    monkeypatch.setattr(TokenScorer, "score", counted)
    requests = scoring([request("r", conversation(20))])

    outcome = Bench(standard("continuous")).run(requests)

    assert max(counts) == MAX_SCORED_ROWS < sum(counts) == len(conversation(20)) - 1
    assert_all_of(requests, outcome)


def test_a_warm_prefix_cache_is_not_read_and_stays_of_use() -> None:
    plain = request("plain", conversation(20))
    scored = scoring([replace(plain, request_id="scored")])
    bench = Bench(mixed(64))
    run = bench.run

    bench.engine.close = lambda: None  # type: ignore[method-assign]  # it goes on
    first = run([plain])
    again = run(scored)
    third = run([replace(plain, request_id="third")])

    assert_all_of(scored, again)
    assert first.stats.num_hit_tokens == again.stats.num_hit_tokens == 0
    assert third.stats.num_hit_tokens > 0
    assert first.tokens["plain"] == again.tokens["scored"] == third.tokens["third"]


@pytest.mark.parametrize("swaps", [0, 8], ids=["recompute", "swap"])
@pytest.mark.parametrize(
    "name",
    ["splitfuse, 48 tokens", pytest.param("chunked, 48 tokens", marks=pytest.mark.slow)],
)
def test_preempted_prompts_are_scored_once(name: str, swaps: int) -> None:
    schedule = SCHEDULES[name].model_copy(update={"max_preempt_count": swaps})
    requests = scoring(crowd())

    outcome = Bench(schedule, num_blocks=SCARCE, num_host_blocks=HOST_BLOCKS).run(requests)

    assert outcome.stats.num_preemptions > 0
    assert (outcome.stats.num_swaps > 0) == bool(swaps)
    assert_same(outcome, truth())
    assert_all_of(requests, outcome)


def several(name: str, prompt: Tokens, count: int, **sampling: Any) -> Request:
    """A request of several choices or beams, with log-probabilities of its prompt."""
    params = SamplingParams(max_tokens=6, prompt_logprobs=NUM_TOP, n=count, **sampling)
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=params,
        max_new_tokens=6,
        seeds=tuple(range(count)),
        sequence_ids=tuple(f"{name}: {index}" for index in range(count)),
    )


def test_choices_and_beams_have_those_of_their_common_prompt() -> None:
    long = conversation(20)
    requests = [
        several("choices", long[:150], 3),
        several("beams", long[:99], 3, use_beam_search=True),
        *(several(f"more {length}", conversation(14)[:length], 2) for length in (40, 80, 120)),
    ]

    outcome = Bench(mixed(48), num_blocks=18).run(requests)

    assert outcome.stats.num_preemptions > 0
    assert_all_of(requests, outcome)


def test_drafts_beside_them_change_nothing() -> None:
    executor = executor_of(decoder_in("none"))
    requests = scoring(crowd())

    outcome = Bench(mixed(48), executor=executor, drafter=LastAgain()).run(requests)

    assert sum(counts.num_drafted for counts in outcome.stats.drafts.values()) > 0
    assert_same(outcome, truth())
    assert_all_of(requests, outcome)


def test_an_aborted_prompt_leaves_nothing_behind() -> None:
    bench = Bench(mixed(16))
    (gone,) = scoring([request("gone", conversation(20))])
    bench.engine.add(gone)
    bench.engine.step(lambda: 0.0)
    bench.engine.abort("gone")
    requests = scoring([request("stays", conversation(20))])

    outcome = bench.run(requests)

    assert_all_of(requests, outcome)


def decoder_in(quantization: Any) -> Decoder:
    return load_decoder(
        TINY,
        dtype="float32",
        runtime=open_device("cpu"),
        max_positions=MAX_SEQ_LEN,
        quantization=quantization,
    )


def executor_of(decoder: Decoder, dtype: torch.dtype | None = None) -> LocalExecutor:
    cache = allocate_kv_cache(
        decoder.cache_layout(BLOCK_SIZE, dtype), num_blocks=ROOMY, device="cpu"
    )
    return LocalExecutor(
        decoder, cache, host_cache=allocate_host_cache(cache, num_blocks=HOST_BLOCKS)
    )


def in_8_bits(schedule: ScheduleConfig, one: Request) -> Outcome:
    executor = executor_of(decoder_in("w8a8"), torch.int8)
    return Bench(schedule, executor=executor).run([one])


def values_of(outcome: Outcome) -> list[float]:
    (parts,) = outcome.prompt_logprobs.values()
    return list(join_prompt_logprobs(parts).logprobs)


@pytest.mark.parametrize("chunk", [1, 7])
def test_in_8_bits_chunks_are_near_the_whole(chunk: int) -> None:
    """As near as sampled tokens are: see `assert_near` of test_micro_batch_combinations.py."""
    (one,) = scoring([request("r", conversation(20)[:200])])

    whole = values_of(in_8_bits(standard("continuous"), one))
    cut = values_of(in_8_bits(mixed(512, split={"prefill_chunk_size": chunk}), one))

    differences = [abs(each - other) for each, other in zip(cut, whole, strict=True)]
    assert max(differences) < 0.5
    assert fmean(differences) < 0.03


def test_in_8_bits_a_token_has_the_log_probability_that_it_was_sampled_with() -> None:
    # A token a step, as tokens are sampled: then all is computed in one order.
    schedule = mixed(512, split={"prefill_chunk_size": 1})
    prompt = conversation(20)[:40]
    said = in_8_bits(schedule, request("r", prompt))

    scored = in_8_bits(schedule, *scoring([request("r", (*prompt, *said.tokens["r"]))]))

    assert values_of(scored)[39:] == pytest.approx(said.logprobs["r"], abs=ATOL)


SHAPES: Final = {
    "tp2": ParallelShape(tp=2),
    "tp2-sp": ParallelShape(tp=2, sp=True),
    "pp2": ParallelShape(pp=2),
    "dp2": ParallelShape(dp=DP),
    "tp2-pp2": ParallelShape(tp=2, pp=2),
    "tp2-dp2": ParallelShape(tp=2, dp=DP),
    "pp2-dp2": ParallelShape(pp=2, dp=DP),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_ranks_give_those_of_transformers(name: str) -> None:
    shape = SHAPES[name]
    num_blocks = SCARCE // shape.dp + 6
    requests = [*scoring(crowd()), several("choices", conversation(20)[:90], 3)]
    with ranks_of(shape, sizes=CacheSizes(num_blocks=num_blocks, num_host_blocks=HOST_BLOCKS)) as (
        _,
        executor,
    ):
        for schedule in (mixed(48), with_async_scheduling(mixed(256, max_preempt_count=8))):
            bench = Bench(
                schedule,
                num_blocks=num_blocks,
                num_host_blocks=HOST_BLOCKS,
                executor=executor,
                dp=shape.dp,
            )

            outcome = bench.run(requests, apart=2)

            assert_all_of(requests, outcome)
            assert {name: outcome.tokens[name] for name in truth().tokens} == truth().tokens


@pytest.mark.slow
def test_micro_batches_beside_them_change_nothing() -> None:
    mixture = [
        one for pair in zip(scoring(crowd())[::2], crowd()[1::2], strict=False) for one in pair
    ]
    with (
        forced_cuts(),
        ranks_of(ParallelShape(tp=2), sizes=CacheSizes(num_blocks=ROOMY), micro_batch=True) as (
            _,
            executor,
        ),
    ):
        outcome = Bench(mixed(256), executor=executor).run(mixture, apart=2)
        assert num_splits(executor) > 0

    assert_same(outcome, truth())
    assert_all_of([one for one in mixture if one.sampling.prompt_logprobs is not None], outcome)
