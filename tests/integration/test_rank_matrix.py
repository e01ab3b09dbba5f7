"""Ranks give the tokens of one, in float32: families of models, shapes of groups, schedules.

64 requests come one after another: prompts of 1 to 700 tokens, of which some begin alike, greedy
and drawn, several choices, beams; some are given up, and settings change meanwhile. Each is also
answered alone, by one rank.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, cycle
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.device.registry import open_device
from tandem_engine.model.decoder import allocate_host_cache, allocate_kv_cache
from tandem_engine.model.load_decoder import load_decoder
from tandem_engine.parallel.plan import ParallelShape
from tandem_engine.runner.caches import CacheSizes
from tandem_engine.runner.executor import Executor, LocalExecutor
from tests.integration.bench import (
    BLOCK_SIZE,
    END,
    SAMPLINGS,
    Bench,
    Outcome,
    Tokens,
    all_free,
    mixed,
    request,
    standard,
    with_async_scheduling,
)
from tests.integration.test_ranks import ranks_of
from tests.unit.engine.native import native_kernels

MAX_POSITIONS: Final = 1024
NUM_OUTPUT: Final = 12
ROOMY: Final = 1024
# The longest request takes 45 blocks.
SCARCE: Final = 64
SCARCE_OF_DP: Final = 48
"""Blocks of each of two dp ranks."""
HOST_BLOCKS: Final = 256
VOCAB_SIZE: Final = 271
LENGTHS: Final = (1, 2, 15, 16, 17, 31, 33, 64, 65, 100, 128, 129, 200, 255, 300, 511, 513, 700)
ABORTED: Final = ("single 5", "single 20", "alike 4", "all of 1", "beams 3")

# Sizes that four ranks can share: with two KV heads, two ranks have the same one.
SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": MAX_POSITIONS,
}
FAMILIES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "Qwen 2": ("Qwen2ForCausalLM", {}),
    "Qwen 3": ("Qwen3ForCausalLM", {"tie_word_embeddings": True}),
    "Llama 3": (
        "LlamaForCausalLM",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            }
        },
    ),
}
SHAPES: Final = {
    "one rank": ParallelShape(),
    "tp2": ParallelShape(tp=2),
    "tp4": ParallelShape(tp=4),
    "pp2": ParallelShape(pp=2),
    "pp4": ParallelShape(pp=4),
    "tp2-pp2": ParallelShape(tp=2, pp=2),
    "tp2-sp": ParallelShape(tp=2, sp=True),
    "dp2": ParallelShape(dp=2),
    "tp2-dp2": ParallelShape(tp=2, dp=2),
}

# test_ranks.py has what `make test` takes: tp2 and tp2-sp, of tandem-tiny.
pytestmark = pytest.mark.slow

Make = Callable[..., Path]


@dataclass(frozen=True)
class Ranks:
    """A group of ranks, or one rank."""

    executor: Executor
    dp: int
    num_blocks: int
    """KV blocks of each dp rank."""


@cache
def requests() -> tuple[Request, ...]:
    """The 64 requests, in the order in which they come."""
    chance = Random(14)  # prompts, not secrets
    samplings = cycle(SAMPLINGS)

    def prompt(length: int) -> Tokens:
        return tuple(chance.choices(range(VOCAB_SIZE - 16), k=length))

    singles = [
        request(f"single {number}", prompt(length), seed=number, **usual(next(samplings)))
        for number, length in enumerate((*LENGTHS, *LENGTHS, 3, 40, 77, 150))
    ]
    common = prompt(290)
    alike = [
        request(f"alike {number}", (*common, *prompt(7 * number)), **usual(next(samplings)))
        for number in range(12)
    ]
    choices = [
        several(f"all of {number}", prompt(50 + 130 * number), 3, temperature=1.2, n=3)
        for number in range(6)
    ]
    beams = [
        several(
            f"beams {number}",
            prompt(9 + 90 * number),
            2 + number % 3,
            use_beam_search=True,
            n=2,
            best_of=2 + number % 3,
        )
        for number in range(6)
    ]
    found = [*singles, *alike, *choices, *beams]
    chance.shuffle(found)
    return tuple(found)


def usual(sampling: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": NUM_OUTPUT, **sampling}


def several(name: str, prompt: Tokens, count: int, **sampling: Any) -> Request:
    """A request of several choices or beams."""
    params = {"max_tokens": NUM_OUTPUT, "temperature": 0.0, **sampling}
    if not sampling.get("use_beam_search"):
        params |= {"logprobs": 0, "logit_bias": {END: -100.0}}
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling=SamplingParams(**params),
        max_new_tokens=NUM_OUTPUT,
        stop_token_ids=frozenset({END}) if sampling.get("use_beam_search") else frozenset(),
        seeds=tuple(range(count)),
        sequence_ids=tuple(f"{name}: {index}" for index in range(count)),
    )


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, make_checkpoint: Make) -> tuple[str, Path]:
    architecture, overrides = FAMILIES[request.param]
    return request.param, make_checkpoint(architecture, **{**SIZES, **overrides})


@pytest.fixture(scope="module", params=SHAPES)
def group(request: pytest.FixtureRequest, family: tuple[str, Path]) -> Iterator[Ranks]:
    """One group for each family and shape; one engine after another uses it."""
    shape = SHAPES[request.param]
    # A block's number tells its dp rank, so the engine must have all blocks that there are.
    num_blocks = ROOMY if shape.dp == 1 else SCARCE_OF_DP
    with executor_of(family[1], shape, num_blocks) as executor:
        yield Ranks(executor, shape.dp, num_blocks)


@contextmanager
def executor_of(folder: Path, shape: ParallelShape, num_blocks: int) -> Iterator[Executor]:
    if shape.world_size == 1:
        yield one_rank(folder)
        return
    sizes = CacheSizes(num_blocks=num_blocks, num_host_blocks=HOST_BLOCKS)
    settings = {"model_path": str(folder), "max_positions": MAX_POSITIONS}
    with ranks_of(shape, sizes=sizes, **settings) as (_, executor):
        yield executor


@cache
def one_rank(folder: Path) -> LocalExecutor:
    native_kernels()
    decoder = load_decoder(
        folder, dtype="float32", runtime=open_device("cpu"), max_positions=MAX_POSITIONS
    )
    cache = allocate_kv_cache(decoder.cache_layout(BLOCK_SIZE), num_blocks=ROOMY, device="cpu")
    host = allocate_host_cache(cache, num_blocks=HOST_BLOCKS)
    return LocalExecutor(decoder, cache, host_cache=host)


@cache
def truth(folder: Path) -> Outcome:
    """Answers of one rank to one request after the other, without a prefix cache."""
    schedule = standard("continuous", enable_prefix_cache=False)
    bench = Bench(schedule, num_blocks=ROOMY, executor=one_rank(folder))
    outcomes = [bench.run([one]) for one in requests()]
    return replace(
        outcomes[-1],
        tokens=dict(chain.from_iterable(each.tokens.items() for each in outcomes)),
        logprobs=dict(chain.from_iterable(each.logprobs.items() for each in outcomes)),
    )


def run(
    ranks: Ranks, schedule: ScheduleConfig, *, num_blocks: int, num_host_blocks: int = 0
) -> Outcome:
    """All requests, of which some are given up, while the settings change every 40 steps."""
    bench = Bench(
        schedule,
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        executor=ranks.executor,
        dp=ranks.dp,
    )
    step, number = bench.engine.step, 0

    def scripted(clock: Callable[[], float]) -> Any:
        nonlocal number
        number += 1
        if number % 40 == 0:
            narrow = schedule.model_copy(update={"max_batch_size": 7})
            bench.engine.reconfigure(narrow if number % 80 else schedule)
        progress = step(clock)
        for name in given_up(progress.step.sequence_ids):
            bench.engine.abort(name)
        return progress

    seen: dict[str, int] = {}

    def given_up(sequence_ids: Any) -> list[str]:
        """Sequences to abort: those of some requests in their fourth step."""
        found = []
        for name in sequence_ids:
            seen[name] = seen.get(name, 0) + 1
            of = name.partition(":")[0]
            if of in ABORTED and seen[name] == 4:
                found += [
                    sequence
                    for each in requests()
                    if each.request_id == of
                    for sequence in each.sequences
                ]
        return found

    bench.engine.step = scripted  # type: ignore[method-assign]
    return bench.run(requests(), apart=2)


def assert_same(outcome: Outcome, expected: Outcome) -> None:
    """The same tokens, of the same log-probabilities; those given up have said a part of them."""
    for name, tokens in expected.tokens.items():
        said = outcome.tokens[name]
        if name.partition(":")[0] in ABORTED:
            assert len(said) < len(tokens), name
        else:
            assert len(said) == len(tokens), name
        assert said == tokens[: len(said)], name
        known = expected.logprobs[name][: len(said)]
        assert outcome.logprobs[name] == pytest.approx(known, abs=1e-3), name
    assert outcome.tokens.keys() == expected.tokens.keys()
    assert all_free(outcome.stats)


def test_the_requests_are_those_of_the_issue(family: tuple[str, Path]) -> None:
    lengths = [len(one.prompt_token_ids) for one in requests()]
    said = truth(family[1]).tokens

    assert len(lengths) == 64
    assert (min(lengths), max(lengths)) == (1, 700)
    assert len(set(said.values())) > 0.9 * len(said)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("template", ["continuous", "splitfuse"])
def test_ranks_say_what_one_says(
    family: tuple[str, Path], group: Ranks, template: str, *, is_async: bool
) -> None:
    schedule = standard("continuous") if template == "continuous" else mixed(96)
    if is_async:
        schedule = with_async_scheduling(schedule)

    outcome = run(group, schedule, num_blocks=group.num_blocks)

    assert_same(outcome, truth(family[1]))
    assert outcome.stats.num_hit_tokens > 0


@pytest.mark.parametrize("way", ["recompute", "swap"])
def test_ranks_say_what_one_says_when_blocks_are_scarce(
    family: tuple[str, Path], group: Ranks, way: str
) -> None:
    swaps = way == "swap"
    schedule = mixed(96, max_preempt_count=8 * swaps)

    num_blocks = min(SCARCE, group.num_blocks)

    outcome = run(group, schedule, num_blocks=num_blocks, num_host_blocks=HOST_BLOCKS * swaps)

    assert_same(outcome, truth(family[1]))
    assert outcome.stats.num_preemptions > 0
    assert (outcome.stats.num_swaps > 0) == swaps
