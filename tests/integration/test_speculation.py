"""Drafts change no token: a whole engine over tandem-tiny, beside every feature."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pytest

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.drafts import DraftMethod
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.api.speculation import SpeculationConfig, SpeculationMethod
from tandem_engine.device.registry import open_device
from tandem_engine.model.decoder import Decoder
from tandem_engine.speculation.draft_cache import DraftCache
from tests.integration.bench import (
    BLOCK_SIZE,
    HOST_BLOCKS,
    NUM_OUTPUT,
    ROOMY,
    SCARCE,
    Bench,
    Outcome,
    all_free,
    choices_of,
    conversation,
    crowd,
    decoder,
    mixed,
    standard,
    with_async_scheduling,
)
from tests.integration.test_micro_batch_combinations import beams, give_up
from tests.tiny import TINY

SLO: Final = Slo(ttft=LatencyTarget(target="2s"), tpot=LatencyTarget(target="20ms"))
WORDS: Final = "red blue green red blue green red blue green red blue"
SCHEDULES: Final[Mapping[str, tuple[ScheduleConfig, dict[str, Any]]]] = {
    "static": (standard("static", max_batch_size=8), {}),
    "continuous": (standard("continuous"), {}),
    "speculative": (standard("speculative"), {}),
    "chunked": (standard("chunked", max_prefill_tokens=48), {}),
    "splitfuse": (mixed(48), {}),
    "async": (with_async_scheduling(mixed(96)), {}),
    "SLO": (mixed(256), {"slo": SLO}),
    "recompute": (mixed(48), {"num_blocks": SCARCE}),
    "swap": (
        mixed(48, max_preempt_count=8),
        {"num_blocks": SCARCE, "num_host_blocks": HOST_BLOCKS},
    ),
    "all at once": (with_async_scheduling(mixed(256)), {"slo": SLO, "num_blocks": SCARCE}),
}


@dataclass(frozen=True, slots=True)
class Method:
    """Where the drafts of a run come from."""

    name: SpeculationMethod
    draft: Decoder | None = None
    drafts_surely: DraftMethod | None = None
    """Drafts of this method are checked in any case."""

    @property
    def speculation(self) -> SpeculationConfig:
        """Return the settings."""
        path = None if self.draft is None else str(TINY)
        return SpeculationConfig(method=self.name, max_draft_tokens=4, draft_path=path)


@cache
def erring() -> Decoder:
    """Return tandem-tiny without its last layer, which is right now and then."""
    whole = decoder()
    layers = whole.packed_model.layers[:-1]
    return Decoder(
        whole.config,
        replace(whole.packed_model, layers=layers),
        open_device("cpu").kernels,
        plan=replace(whole.plan, layers=whole.plan.layers[: len(layers)]),
    )


def method_of(name: str) -> Method:
    return {
        "ngram": lambda: Method("ngram", drafts_surely="ngram"),
        "auto": lambda: Method("auto"),
        "the model itself": lambda: Method("draft", decoder(), "draft"),
        "a model that errs": lambda: Method("draft", erring(), "draft"),
        "auto with a model": lambda: Method("auto", erring()),
    }[name]()


METHODS: Final = ("ngram", "auto", "the model itself", "a model that errs", "auto with a model")
NGRAM_OFTEN: Final = ("continuous", "splitfuse", "async", "swap")
"""Schedules that `make test` has with drafts that repeat the prompt; it has the others with a model
that errs, and all at once with every method."""


def often(schedule: str) -> str:
    """Return the method that `make test` has with a schedule."""
    return "ngram" if schedule in NGRAM_OFTEN else "a model that errs"


def schedules_and_methods() -> list[Any]:
    """Return each schedule with each method as parameters."""
    return [
        pytest.param(
            name,
            method,
            marks=() if name == "all at once" or method == often(name) else pytest.mark.slow,
        )
        for name in SCHEDULES
        for method in METHODS
    ]


def copying() -> list[Request]:
    """Requests whose answers are alike or repeat themselves, as they go on behind their end."""
    texts = [f"Repeat: {WORDS}", f"Repeat: {WORDS}", "Count from 1 to 20.", "Reverse: abcabc"]
    return [
        Request(
            request_id=f"copy {number}",
            prompt_token_ids=conversation(13, text),
            sampling=SamplingParams(max_tokens=NUM_OUTPUT, temperature=0.0, logprobs=1),
            max_new_tokens=NUM_OUTPUT,
            stop_token_ids=frozenset(),
            seeds=(number,),
        )
        for number, text in enumerate(texts)
    ]


def requests() -> list[Request]:
    return [*copying(), *crowd()]


@cache
def plain(name: str) -> Outcome:
    """Return the outcome of a schedule without drafts."""
    schedule, settings = SCHEDULES[name]
    return Bench(schedule, **settings).run(requests(), apart=2)


def drafted(
    schedule: ScheduleConfig, method: Method, asked: list[Request], **settings: Any
) -> Outcome:
    bench = Bench(schedule, speculation=method.speculation, draft=method.draft, **settings)
    return bench.run(asked, apart=2)


@pytest.mark.parametrize(("name", "method"), schedules_and_methods())
def test_drafts_change_no_token(name: str, method: str) -> None:
    schedule, settings = SCHEDULES[name]
    way = method_of(method)

    found = drafted(schedule, way, requests(), **settings)

    assert found.tokens == plain(name).tokens
    for sequence_id, logprobs in plain(name).logprobs.items():
        assert found.logprobs[sequence_id] == pytest.approx(logprobs, abs=1e-3), sequence_id
    assert all_free(found.stats)
    assert tuple(found.stats.drafts) == way.speculation.methods
    if way.drafts_surely:
        counts = found.stats.drafts[way.drafts_surely]
        assert 0 < counts.num_accepted <= counts.num_drafted


def test_a_draft_model_is_right_where_it_is_the_model() -> None:
    greedy = copying()

    found = drafted(standard("continuous"), method_of("the model itself"), greedy)

    counts = found.stats.drafts["draft"]
    # The last drafts of an answer may lie behind its end.
    assert counts.num_accepted > 0.9 * counts.num_drafted
    assert len(found.records) < NUM_OUTPUT * len(greedy) / 2


def test_drawn_tokens_are_guessed_by_the_numbers_that_draw_them() -> None:
    drawn = [
        replace(one, sampling=replace(one.sampling, temperature=1.0, top_p=0.9))
        for one in copying()
    ]

    counts = drafted(standard("continuous"), method_of("the model itself"), drawn).stats.drafts

    assert counts["draft"].num_accepted > 0.9 * counts["draft"].num_drafted


@pytest.mark.parametrize("method", ["ngram", "a model that errs"])
def test_choices_have_drafts_and_beams_have_none(method: str) -> None:
    asked = [*choices_of(41), *beams()]
    expected = Bench(mixed(256)).run(asked)

    found = drafted(mixed(256), method_of(method), asked)

    assert found.tokens == expected.tokens
    steps = [record.step for record in found.records]
    with_drafts = {name for step in steps for name in step.drafts}
    assert any(name.startswith("choice ") for name in with_drafts)
    assert not any(name.startswith("beam ") for name in with_drafts)


@pytest.mark.parametrize("method", ["ngram", "a model that errs"])
def test_requests_that_are_given_up_leave_nothing(method: str) -> None:
    way = method_of(method)
    bench = Bench(mixed(96), speculation=way.speculation, draft=way.draft)
    give_up(bench)

    found = bench.run(crowd(), apart=2)

    assert all_free(found.stats)
    if way.draft is not None:
        cache = draft_cache_of(bench)
        cache.check_integrity()
        assert cache.num_free == ROOMY


def test_a_row_without_a_guess_costs_one_token() -> None:
    found = drafted(mixed(256), method_of("ngram"), requests())

    for record in found.records:
        step = record.step
        for at, sequence_id in enumerate(step.sequence_ids[: step.num_decodes]):
            assert step.num_tokens[at] == 1 + len(step.drafts.get(sequence_id, ()))


def test_what_others_have_written_is_guessed() -> None:
    once, again = copying()[:2]
    bench = Bench(standard("continuous"), speculation=SpeculationConfig(method="ngram"))

    first, second = bench.run([once]), bench.run([again])

    assert second.tokens["copy 1"] == first.tokens["copy 0"]
    before, after = first.stats.drafts["ngram"], second.stats.drafts["ngram"]
    assert after.num_accepted > 2 * before.num_accepted


def test_a_copying_answer_takes_fewer_steps() -> None:
    expected = Bench(standard("continuous")).run(copying()[:1], apart=2)

    found = drafted(standard("continuous"), method_of("ngram"), copying()[:1])

    assert found.tokens == expected.tokens
    assert len(found.records) < len(expected.records)


def test_a_draft_model_catches_up_within_the_tokens_of_a_step() -> None:
    """A prompt is computed by the draft model in parts, beside sequences that decode."""
    schedule = mixed(48)
    expected = Bench(schedule).run(crowd(), apart=1)
    way = method_of("a model that errs")
    bench = Bench(schedule, speculation=way.speculation, draft=way.draft)
    computed: list[int] = []
    model = draft_model_of(bench)
    compute = model._compute

    def note(rows: Any, counts: Any) -> int:
        computed.append(sum(counts))
        return int(compute(rows, counts))

    model._compute = note

    found = bench.run(crowd(), apart=1)

    assert found.tokens == expected.tokens
    assert max(computed) <= schedule.largest_step
    assert sum(count > 8 for count in computed) > 10


def test_a_draft_model_without_blocks_drafts_for_those_that_have_some() -> None:
    way = method_of("a model that errs")
    bench = Bench(mixed(96), speculation=way.speculation, draft=way.draft)
    model = draft_model_of(bench)
    model._cache = DraftCache(24, BLOCK_SIZE)

    found = bench.run(crowd(), apart=1)

    assert found.tokens == Bench(mixed(96)).run(crowd(), apart=1).tokens
    assert found.stats.drafts["draft"].num_accepted > 0
    model._cache.check_integrity()


def draft_model_of(bench: Bench) -> Any:
    runner: Any = bench.engine._runner
    return runner._proposer._draft_model


def draft_cache_of(bench: Bench) -> DraftCache:
    cache: DraftCache = draft_model_of(bench)._cache
    return cache
