"""status.scaling: decisions, conditions, when they are written, and the past read back."""

import math
from typing import Any

import pytest

from tandem_operator.autoscaler.document import (
    ExplainedDecision,
    is_due,
    kept_history,
    own_part,
    scaling_conditions,
    scaling_document,
    with_decision,
)
from tandem_operator.autoscaler.messages import message_of
from tandem_operator.clock import from_unix_s, to_unix_s
from tandem_operator.crd.status_schema import status_schema
from tandem_operator.scaling_law.decide import decide
from tandem_operator.scaling_law.decision import Decision, DecisionReason
from tandem_operator.scaling_law.history import MAX_DECISIONS, History
from tandem_operator.scaling_law.mode import StatusScaling
from tandem_operator.scaling_law.observation import Observation, SignalProblem
from tests.unit.operator.scaling_law.measurements import POLICY, observed

NOW = "2026-11-21T14:00:00Z"
LATER = "2026-11-21T14:00:15Z"
MUCH_LATER = "2026-11-21T14:10:00Z"


def told(observation: Observation | None = None, **fields: Any) -> ExplainedDecision:
    found = observation or observed()
    decision = decide(found, POLICY, History(), to_unix_s(NOW))
    return ExplainedDecision(decision=decision, observation=found, **fields)


def part(one: ExplainedDecision, decisions: list[dict[str, Any]]) -> dict[str, Any]:
    conditions = scaling_conditions(one, (), generation=3, now=NOW)
    numbers = StatusScaling(mode="Auto", desired_replicas=one.decision.desired)
    return {"scaling": scaling_document(numbers, decisions, 40.0), "conditions": conditions}


def test_figures_have_the_apis_names_and_few_digits() -> None:
    one = told(observed(arrival_rate=3.14159265, room=None), engine={"token_budget": math.nan})
    (entry,) = with_decision([], one, NOW)

    assert entry["inputs"]["arrivalRate"] == 3.142
    assert entry["inputs"]["queueAgeSeconds"] == 0
    assert entry["inputs"]["zeroLoadTtftSeconds"] == 0.3
    assert entry["inputs"]["ttftSeconds"] == 0.6
    assert entry["inputs"]["ttftSamples"] == 100
    assert entry["inputs"]["current"] == 2
    assert "room" not in entry["inputs"]
    assert "tokenBudget" not in entry["inputs"]


def test_every_field_is_in_the_schema() -> None:
    schema = status_schema()["properties"]["scaling"]["properties"]
    document = part(told(), with_decision([], told(), NOW))["scaling"]

    assert set(document) <= set(schema)
    assert set(document["decisions"][0]) == set(schema["decisions"]["items"]["properties"])


def test_equal_decisions_in_a_row_are_one_and_twenty_are_kept() -> None:
    decisions = with_decision(with_decision([], told(), NOW), told(), LATER)

    assert [(one["firstTime"], one["lastTime"]) for one in decisions] == [(NOW, LATER)]
    for number in range(30):
        one = ExplainedDecision(
            decision=Decision(desired=number, recommended=number, reason=DecisionReason.UNDERUSED),
            observation=observed(),
        )
        decisions = with_decision(decisions, one, LATER)
    assert len(decisions) == MAX_DECISIONS
    assert decisions[-1]["replicas"] == 29


def test_new_figures_alone_are_written_after_a_while() -> None:
    before = part(told(), with_decision([], told(), NOW))
    changed = told(observed(arrival_rate=15.0))
    decisions = before["scaling"]["decisions"]

    assert not is_due(before, part(changed, with_decision(decisions, changed, LATER)))
    assert is_due(before, part(changed, with_decision(decisions, changed, MUCH_LATER)))
    other = told(observed(problem=SignalProblem.STALE))
    assert is_due(before, part(other, with_decision(decisions, other, LATER)))
    assert is_due(own_part({}), before)


def test_the_part_of_the_reconciler_is_not_compared() -> None:
    mine = part(told(), with_decision([], told(), NOW))
    status = {
        "observedGeneration": 3,
        "scaling": mine["scaling"],
        "conditions": [{"type": "Ready", "status": "True"}, *mine["conditions"]],
    }

    assert own_part(status) == mine


def test_the_history_of_a_status_has_its_changes_and_its_cold_start() -> None:
    grown = ExplainedDecision(
        decision=Decision(
            desired=5,
            recommended=5,
            reason=DecisionReason.PREDICTED_OVERLOAD,
            inputs={"current": 2.0},
        ),
        observation=observed(),
    )
    decisions = with_decision(with_decision([], grown, NOW), told(observed(5)), LATER)
    status = part(told(observed(5)), decisions)
    history = kept_history(status, settled_at=to_unix_s(LATER) + 20, max_gap_s=90)

    now = to_unix_s(LATER)
    assert history.since_growth_s(now) == 15
    assert history.grown_by(now, 30) == 3
    assert history.cold_start_s == 40
    assert history.settled_for_s(now + 30) == 10
    assert not history.covers(now, 30), "windows begin again"


def test_the_sentence_of_an_overload_names_the_load_and_the_rule() -> None:
    inputs = {
        "arrival_rate": 28.0,
        "capacity_per_replica": 10.0,
        "needed": 4.0,
        "rule_factor": 1.25,
        "rule_window_s": 300.0,
    }
    decision = Decision(
        desired=4, recommended=4, reason=DecisionReason.PREDICTED_OVERLOAD, inputs=inputs
    )

    assert message_of(decision) == (
        "28 requests/s arrive, a replica is predicted to carry 10; the rule in force is 1.25 times "
        "the highest load of the last 300 s: 4 are needed"
    )


def test_the_history_of_no_status_is_empty() -> None:
    assert kept_history({}, settled_at=None, max_gap_s=90) == History()


def condition(one: ExplainedDecision, kind: str) -> tuple[str, str]:
    found = scaling_conditions(one, (), generation=1, now=NOW)
    return next((c["status"], c["reason"]) for c in found if c["type"] == kind)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (SignalProblem.MISSING, "MetricsMissing"),
        (SignalProblem.STALE, "MetricsStale"),
        (SignalProblem.NOT_A_NUMBER, "MetricsInvalid"),
        (SignalProblem.DISAGREEING, "MetricsDisagree"),
        (SignalProblem.UNREACHABLE, "MetricsUnreachable"),
    ],
)
def test_metrics_that_cannot_be_trusted_make_it_inactive(
    problem: SignalProblem, reason: str
) -> None:
    assert condition(told(observed(problem=problem)), "ScalingActive") == ("False", reason)


def test_without_an_answering_replica_it_is_unknown() -> None:
    one = told(observed(1, ready=0, starting=1, problem=SignalProblem.MISSING))

    assert condition(one, "ScalingActive") == ("Unknown", "ReplicasStarting")


def test_limits_are_told() -> None:
    at_maximum = told(observed(8, arrival_rate=200.0))

    assert condition(at_maximum, "ScalingLimited") == ("True", "AtMaximum")
    assert condition(told(), "ScalingLimited") == ("False", "DesiredWithinRange")


def test_a_target_without_an_estimate_is_unknown() -> None:
    unknown = told(observed(zero_load_ttft_s=None))

    assert condition(unknown, "SLOFeasible") == ("Unknown", "NoEstimate")
    assert condition(told(observed(ttft=None, zero_load_ttft_s=None)), "SLOFeasible")[0] == "True"


@pytest.mark.parametrize("reason", DecisionReason)
def test_every_reason_has_a_sentence(reason: DecisionReason) -> None:
    bare = Decision(desired=2, recommended=3, reason=reason)
    text = message_of(bare, "more about it")

    assert text
    assert text.endswith(": more about it")
    assert text[0].islower() or text.startswith(("TTFT", "TPOT", "Prometheus", "an "))
    assert ("would be 3" in text) == reason.is_hold


def test_moments_come_back() -> None:
    assert from_unix_s(to_unix_s(NOW)) == NOW
