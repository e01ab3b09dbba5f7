"""Drafts under an SLO, in a virtual time: no load keeps the targets less often for them."""

from random import Random

import pytest

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.slo import LatencyTarget, Slo
from tandem_engine.api.speculation import SpeculationConfig
from tandem_engine.simulate.drafts import DraftPrices, SimulatedDrafts
from tandem_engine.simulate.machines import MACHINES, Noise, NoisyMachine
from tandem_engine.simulate.scheduler_replica import SchedulerReplica
from tandem_engine.simulate.simulator import Simulator
from tandem_engine.simulate.workload import Arrival, Shape

SLO = Slo(ttft=LatencyTarget(target="1s"), tpot=LatencyTarget(target="60ms"))
SCHEDULE = ScheduleConfig(template_type="Mix", max_batch_size=128)
NUM_REQUESTS = 600
FEW_REQUESTS = 100
LEAST = 0.98
"""Goodput with drafts, without = 1: the noise of another course of the same load."""
METHODS = {
    "off": None,
    "ngram": SpeculationConfig(method="ngram"),
    "auto": SpeculationConfig(method="auto"),
    "draft": SpeculationConfig(method="draft", draft_path="small"),
    "auto with a model": SpeculationConfig(method="auto", draft_path="small"),
}


def load(rate: float, num_requests: int) -> list[Arrival]:
    chance, now, arrivals = Random(5), 0.0, []
    for _ in range(num_requests):
        now += chance.expovariate(rate)
        shape = Shape(round(chance.uniform(50, 700)), round(chance.uniform(20, 300)))
        arrivals.append(Arrival(now, shape))
    return arrivals


def goodput(
    method: str, rate: float, prices: DraftPrices, num_requests: int = NUM_REQUESTS
) -> tuple[float, int]:
    """Return the requests a second that kept both targets, and the steps that it took."""
    machine = NoisyMachine(MACHINES["gpu"], Noise(), Random(1))
    speculation = METHODS[method]
    drafts = None if speculation is None else SimulatedDrafts(speculation, prices, Random(2))
    replica = SchedulerReplica(
        SCHEDULE, SLO, machine, num_blocks=MACHINES["gpu"].num_blocks, drafts=drafts
    )
    result = Simulator(replica).run(load(rate, num_requests))
    assert len(result.requests) == num_requests
    kept = [
        request
        for request in result.requests
        if request.ttft_s <= (SLO.ttft_s or 0) and (request.tpot_s or 0) <= (SLO.tpot_s or 0)
    ]
    return len(kept) / result.wall_s, result.num_steps


@pytest.mark.slow
@pytest.mark.parametrize("rate", [2.0, 12.0, 20.0, 30.0])
def test_goodput_is_not_lower_with_drafts(rate: float) -> None:
    prices = DraftPrices()
    without, _ = goodput("off", rate, prices)

    methods = ("ngram", "auto", "auto with a model")
    with_drafts = {method: goodput(method, rate, prices)[0] for method in methods}

    assert without > 0
    assert min(with_drafts.values()) >= LEAST * without, (with_drafts, without)


@pytest.mark.slow
def test_drafts_that_are_wrong_cost_no_goodput_where_auto_decides() -> None:
    prices = DraftPrices(hit_rate=1.0, right=0.05, pass_s=5e-3)
    without, _ = goodput("off", 20.0, prices)

    for method in ("auto", "auto with a model"):
        assert goodput(method, 20.0, prices)[0] >= LEAST * without


@pytest.mark.slow
def test_few_requests_take_fewer_steps() -> None:
    prices = DraftPrices(hit_rate=1.0, right=0.9)
    _, without = goodput("off", 1.0, prices, FEW_REQUESTS)

    for method in ("ngram", "draft", "auto with a model"):
        assert goodput(method, 1.0, prices, FEW_REQUESTS)[1] < 0.5 * without
