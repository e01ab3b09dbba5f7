"""The steps that the templates make, worked out on paper."""

import pytest

from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.step import SampledToken, Step, StepResult
from tandem_engine.engine import Engine
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.testing import CountingRunner

BLOCK_SIZE = 16


def request(name: str, num_prompt: int, num_output: int = 8, **sampling: object) -> Request:
    params = SamplingParams(max_tokens=num_output, **sampling)  # type: ignore[arg-type]
    return Request(
        request_id=name,
        prompt_token_ids=tuple(range(num_prompt)),
        sampling=params,
        max_new_tokens=num_output,
        stop_token_ids=frozenset(params.stop_token_ids),
    )


def engine_of(schedule: ScheduleConfig, *requests: Request, num_blocks: int = 64) -> Engine:
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    engine = Engine(Scheduler(schedule, pool), CountingRunner(block_size=BLOCK_SIZE))
    for each in requests:
        engine.add(each)
    return engine


def mix(chunk: int = 32, start: int = 0, **settings: object) -> ScheduleConfig:
    split = SplitFuseConfig(split_chunk_tokens=chunk, split_start_batch_size=start)
    return ScheduleConfig(template_type="Mix", split_fuse=split, **settings)  # type: ignore[arg-type]


def steps(engine: Engine, count: int) -> list[dict[str, int]]:
    return [dict(engine.step().step.num_tokens) for _ in range(count)]


def test_mix_puts_decodes_first_and_fills_the_budget_with_chunks() -> None:
    engine = engine_of(mix(32), request("a", 40), request("b", 30))

    assert steps(engine, 4) == [
        {"a": 32},  # the first chunk of a takes the whole budget
        {"a": 8, "b": 24},  # a's last chunk yields its first token
        {"a": 1, "b": 6},  # a decodes first, b's last chunk behind it
        {"a": 1, "b": 1},
    ]


def test_only_the_last_chunk_yields_a_token() -> None:
    engine = engine_of(mix(32), request("a", 70))

    yields = [[advance.request_id for advance in engine.step().advances] for _ in range(4)]

    assert yields == [[], [], ["a"], ["a"]]


def test_mix_keeps_prompts_whole_until_the_batch_reaches_split_start() -> None:
    schedule = mix(16, start=2, max_prefill_tokens=200)
    engine = engine_of(schedule, request("a", 50), request("b", 60), request("c", 40))

    assert steps(engine, 3) == [
        {"a": 50, "b": 60},  # the third would be cut, and 16 tokens are taken already
        {"a": 1, "b": 1, "c": 14},
        {"a": 1, "b": 1, "c": 14},
    ]


def test_split_start_type_true_goes_back_to_whole_prompts() -> None:
    latched = mix(16, start=1, max_prefill_tokens=200)
    again = latched.model_copy(
        update={
            "split_fuse": SplitFuseConfig(
                split_chunk_tokens=16, split_start_batch_size=1, split_start_type=True
            )
        }
    )
    first_steps = {}
    for name, schedule in (("latched", latched), ("tested again", again)):
        engine = engine_of(schedule, request("a", 20, 2))
        steps(engine, 1)
        engine.add(request("b", 30))
        steps(engine, 1)  # b is cut: a decodes beside it; a ends here
        engine.add(request("c", 40))
        engine.abort("b")
        first_steps[name] = steps(engine, 1)[0]

    assert first_steps == {"latched": {"c": 16}, "tested again": {"c": 40}}


def test_standard_prefills_whole_prompts_before_it_decodes() -> None:
    schedule = ScheduleConfig(max_prefill_tokens=64)
    engine = engine_of(schedule, request("a", 40), request("b", 20), request("c", 30))

    assert steps(engine, 3) == [{"a": 40, "b": 20}, {"c": 30}, {"a": 1, "b": 1, "c": 1}]


def test_standard_runs_a_prompt_longer_than_max_prefill_tokens_alone() -> None:
    schedule = ScheduleConfig(max_prefill_tokens=16)
    engine = engine_of(schedule, request("a", 40), request("b", 8))

    assert steps(engine, 2) == [{"a": 40}, {"b": 8}]


def test_standard_finishes_chunks_that_mix_has_begun() -> None:
    engine = engine_of(mix(32), request("a", 80))
    steps(engine, 1)

    engine.reconfigure(ScheduleConfig())

    assert steps(engine, 2) == [{"a": 48}, {"a": 1}]


def test_the_default_split_start_fits_a_small_batch() -> None:
    schedule = ScheduleConfig(
        template_type="Mix",
        max_batch_size=2,
        max_prefill_tokens=100,
        split_fuse=SplitFuseConfig(split_chunk_tokens=16),
    )
    engine = engine_of(schedule, *(request(name, 20) for name in "abc"))

    assert schedule.split_start_rows == 2
    assert steps(engine, 1) == [{"a": 20, "b": 20}]


def test_decodes_do_not_count_as_prompt_tokens_of_whole_prompts() -> None:
    schedule = mix(16, start=8, max_prefill_tokens=64)
    engine = engine_of(schedule, request("a", 4, 50), request("b", 4, 50))
    steps(engine, 1)
    engine.add(request("long", 63))

    assert steps(engine, 1) == [{"a": 1, "b": 1, "long": 63}]


def test_after_a_limit_is_lowered_all_running_requests_go_on_in_turns() -> None:
    engine = engine_of(ScheduleConfig(), *(request(name, 4, 50) for name in "abcde"))
    steps(engine, 1)
    engine.reconfigure(ScheduleConfig(max_batch_size=2))

    assert [list(step) for step in steps(engine, 4)] == [
        ["a", "b"],
        ["c", "d"],
        ["e", "a"],
        ["b", "c"],
    ]


def test_a_preempted_request_leaves_the_step_that_it_was_in() -> None:
    engine = engine_of(ScheduleConfig(), *(request(n, 15, 40) for n in "abc"), num_blocks=4)
    steps(engine, 2)
    engine.reconfigure(ScheduleConfig(max_batch_size=2))
    while engine.has_work:
        progress = engine.step()
        assert not set(progress.step.preempted) & set(progress.step.num_tokens)
        engine.check_integrity()

    assert engine.stats().num_preemptions > 0


@pytest.mark.parametrize("template", ["Standard", "Mix"])
def test_no_more_than_max_batch_size_run(template: str) -> None:
    schedule = ScheduleConfig(
        template_type=template,  # type: ignore[arg-type]
        max_batch_size=2,
        split_fuse=SplitFuseConfig(split_start_batch_size=0),
    )
    engine = engine_of(schedule, *(request(name, 4, 2) for name in "abc"))

    assert [set(step) for step in steps(engine, 3)] == [{"a", "b"}, {"a", "b"}, {"c"}]


def test_max_prefill_batch_size_limits_the_prompts_of_a_step() -> None:
    engine = engine_of(mix(32, max_prefill_batch_size=1), request("a", 4), request("b", 4))

    assert steps(engine, 2) == [{"a": 4}, {"a": 1, "b": 4}]


def test_the_newest_gives_way_when_blocks_run_out() -> None:
    engine = engine_of(mix(64), request("a", 16, 20), request("b", 15, 20), num_blocks=3)
    steps(engine, 1)  # a has one block, b one

    first = engine.step().step  # a grows into the third block
    second = engine.step().step  # b would grow now, and is itself the newest

    assert (dict(first.num_tokens), first.preempted) == ({"a": 1, "b": 1}, ())
    assert (dict(second.num_tokens), second.preempted) == ({"a": 1}, ("b",))


def test_a_preempted_request_is_computed_again_with_what_it_had_said() -> None:
    engine = engine_of(mix(64), request("a", 16, 4), request("b", 15, 6), num_blocks=3)
    said: dict[str, list[int]] = {"a": [], "b": []}
    recomputed = []
    while engine.has_work:
        progress = engine.step()
        recomputed += [n for name, n in progress.step.num_tokens.items() if name == "b" and n > 1]
        for advance in progress.advances:
            said[advance.request_id].append(advance.token.token_id)

    assert said == {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3, 4, 5]}
    assert recomputed == [15, 17]
    assert engine.stats().num_preemptions == 1


def test_a_request_waits_until_its_whole_prompt_has_blocks() -> None:
    engine = engine_of(mix(16), request("a", 40), request("b", 40), num_blocks=5)

    assert all("b" not in step for step in steps(engine, 5))


def test_a_stop_id_ends_a_request_and_frees_its_blocks() -> None:
    engine = engine_of(mix(32), request("a", 4, 8, stop_token_ids=(2,)))
    reasons = [advance.finish_reason for _ in range(3) for advance in engine.step().advances]

    assert reasons == [None, None, "stop"]
    assert engine.stats().num_free_kv_blocks == engine.stats().num_kv_blocks


def test_min_tokens_passes_over_an_early_stop_id() -> None:
    engine = engine_of(mix(32), request("a", 4, 8, stop_token_ids=(0, 3), min_tokens=2))
    reasons = [advance.finish_reason for _ in range(4) for advance in engine.step().advances]

    assert reasons == [None, None, None, "stop"]


def test_the_length_limit_ends_a_request() -> None:
    engine = engine_of(ScheduleConfig(), request("a", 4, 3))
    reasons = [advance.finish_reason for _ in range(3) for advance in engine.step().advances]

    assert reasons == [None, None, "length"]
    assert not engine.has_work


class BreakingRunner(CountingRunner):
    """Raises in steps that hold `poison`; fails the row `frail` alone."""

    def run(self, step: Step) -> StepResult:
        if "poison" in step.num_tokens:
            raise RuntimeError("no such kernel")
        tokens = dict(super().run(step).tokens)
        failed = {"frail": "its logits are no numbers"} if tokens.pop("frail", None) else {}
        return StepResult(tokens=tokens, failed=failed)


def breaking_engine(*requests: Request) -> Engine:
    pool = BlockPool(64, BLOCK_SIZE)
    engine = Engine(Scheduler(ScheduleConfig(), pool), BreakingRunner(block_size=BLOCK_SIZE))
    for each in requests:
        engine.add(each)
    return engine


def test_a_step_that_raises_takes_down_its_own_requests_only() -> None:
    engine = breaking_engine(request("poison", 4), request("beside", 4))
    failed = engine.step().failed
    engine.add(request("later", 4, 2))
    later = [advance.request_id for _ in range(2) for advance in engine.step().advances]

    assert set(failed) == {"poison", "beside"}
    assert failed["poison"] == "RuntimeError: no such kernel"
    assert later == ["later", "later"]
    engine.check_integrity()
    assert engine.stats().num_free_kv_blocks == 64


def test_a_row_without_numbers_fails_alone() -> None:
    engine = breaking_engine(request("frail", 4), request("sound", 4))
    progress = engine.step()

    assert progress.failed == {"frail": "its logits are no numbers"}
    assert progress.advances[0].token == SampledToken(0)
    assert engine.stats().num_running == 1
