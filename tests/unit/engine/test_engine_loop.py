"""The engine's loop and its metrics, without a thread, a model or a clock."""

import time
from collections.abc import Sequence

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.request import Request, SamplingParams
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.async_engine.choice import Choice
from tandem_engine.async_engine.loop import EngineLoop, _Command
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.async_engine.stream import RequestStream
from tandem_engine.engine import Engine
from tandem_engine.kvcache.pool import BlockPool
from tandem_engine.scheduler.scheduler import Scheduler
from tandem_engine.testing import CountingRunner
from tandem_engine.text.detokenizer import Detokenizer
from tandem_engine.text.stop_strings import StopAutomaton, StopStrings
from tests.unit.engine.test_metrics import samples, split_fuse

SLO = Slo(ttft=LatencyTarget(target="60s"), tpot=LatencyTarget(target="30s"))


class Mute(Detokenizer):
    """No text at all."""

    def __init__(self) -> None: ...

    def push(self, token_id: int) -> str:  # noqa: ARG002 - as the protocol has it
        return ""

    def flush(self) -> str:
        return ""


class Bench:
    """A loop whose commands and steps are called one by one."""

    def __init__(self, schedule: ScheduleConfig, slo: Slo) -> None:
        scheduler = Scheduler(schedule, BlockPool(64, 16), slo=slo)
        self.metrics = EngineMetrics("tiny", schedule=schedule, slo=slo)
        self.loop = EngineLoop(
            Engine(scheduler, CountingRunner(block_size=16)), self.metrics, schedule
        )

    def begin(self, name: str, *, age_s: float = 0.0, num_choices: int = 1) -> Request:
        """Take a request that arrived `age_s` ago, with an answer of four tokens."""
        request = Request(
            request_id=name,
            prompt_token_ids=tuple(range(40)),
            sampling=SamplingParams(max_tokens=4, n=num_choices),
            max_new_tokens=4,
            seeds=tuple(range(num_choices)),
            sequence_ids=tuple(f"{name}-{index}" for index in range(num_choices)),
            arrived=time.perf_counter() - age_s,
        )
        self.loop._begin(request, self._choices(request))
        return request

    def _choices(self, request: Request) -> Sequence[Choice]:
        stream = RequestStream(len(request.sequences), abort=lambda: None)
        stops = StopStrings(StopAutomaton(()))
        return [
            Choice(
                request, index=index, stream=stream, text=Mute(), stops=stops, prompt_logprobs=[]
            )
            for index in range(len(request.sequences))
        ]

    def run(self) -> None:
        while self.loop._engine.has_work:
            self.loop._step()

    def __getitem__(self, key: tuple[str, ...]) -> float:
        return samples(self.metrics)[key]


def test_the_queue_is_as_old_as_the_oldest_request_without_a_step() -> None:
    bench = Bench(split_fuse(64), SLO)
    assert bench["tandem_queue_age_seconds",] == 0.0

    bench.begin("old", age_s=20.0)
    bench.begin("young", age_s=5.0)
    assert 20.0 <= bench["tandem_queue_age_seconds",] < 30.0

    # The second one waits for the prefix that both have in common.
    bench.loop._step()
    assert 5.0 <= bench["tandem_queue_age_seconds",] < 15.0
    bench.run()
    assert bench["tandem_queue_age_seconds",] == 0.0


def test_requests_that_leave_without_a_step_do_not_age_the_queue() -> None:
    bench = Bench(split_fuse(64), SLO)
    aborted = bench.begin("aborted", age_s=20.0, num_choices=2)
    bench.begin("stays", age_s=5.0)

    bench.loop._abort(aborted.sequences)

    assert 5.0 <= bench["tandem_queue_age_seconds",] < 15.0
    bench.run()
    assert bench["tandem_queue_age_seconds",] == 0.0


def test_each_choice_of_a_request_is_judged_once() -> None:
    bench = Bench(split_fuse(64), SLO)
    bench.begin("kept", num_choices=3)
    bench.begin("late", age_s=100.0)
    bench.run()

    assert bench["tandem_slo_requests_total", "met"] == 3.0
    assert bench["tandem_slo_requests_total", "ttft"] == 1.0
    assert bench["tandem_request_success_total",] == 4.0


def test_a_live_change_moves_the_bounds_and_judges_by_the_new_targets() -> None:
    bench = Bench(split_fuse(64), SLO)
    bench.begin("before", age_s=45.0)
    bench.run()
    bucket = "tandem_time_to_first_token_seconds_bucket"
    assert bench[bucket, "60.0"] == 1.0

    bench.loop._reconfigure(split_fuse(64), Slo(ttft=LatencyTarget(target="40s")))
    bench.begin("after", age_s=45.0)
    bench.run()

    told = samples(bench.metrics)
    assert (bucket, "60.0") not in told
    assert told[bucket, "40.0"] == 0.0
    assert told[bucket, "+Inf"] == 2.0
    assert told["tandem_slo_requests_total", "met"] == 1.0
    assert told["tandem_slo_requests_total", "ttft"] == 1.0
    assert ("tandem_slo_target_seconds", "tpot") not in told


def test_predictions_follow_from_requests_that_were_served() -> None:
    bench = Bench(split_fuse(64), SLO)
    for number in range(20):
        bench.begin(f"r{number}")
    bench.run()

    assert bench["tandem_predicted_capacity_requests_per_second",] > 0.0
    assert bench["tandem_predicted_zero_load_ttft_seconds",] > 0.0
    assert bench["tandem_predicted_zero_load_tpot_seconds",] > 0.0
    shape = bench.metrics._recent.shape()
    assert shape is not None
    assert (round(shape.prompt), round(shape.output)) == (40, 4)


def test_a_step_comes_though_commands_never_end() -> None:
    bench = Bench(split_fuse(64), SLO)
    bench.begin("r")
    left = 1_000_000  # seconds of commands, many times what may come between two steps

    def ask_again() -> None:
        nonlocal left
        left -= 1
        if left:
            bench.loop._commands.put(_Command(ask_again, lambda _error: None))

    ask_again()
    assert bench.loop._take_commands()

    assert left
    bench.run()
    assert not bench.loop._choices
