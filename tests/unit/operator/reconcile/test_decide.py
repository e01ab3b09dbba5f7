"""Requeues of a service without an event."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tandem_operator.ray.token import RayToken
from tandem_operator.reconcile.change_stamp import stamped
from tandem_operator.reconcile.decide import (
    POLL_S,
    POLLS_PER_S,
    collect_facts,
    decide,
    is_reconciled,
    requeue_after_s,
    write_conflict,
)
from tandem_operator.reconcile.observation import Observation
from tandem_operator.reconcile.parsed_spec import ParsedSpec, parse_spec
from tandem_operator.reconcile.plan import ApplyObject, CreateToken, ObjectKey, ObservedObjects
from tandem_operator.render.settings import (
    OperatorSettings,
    PrometheusRuleSettings,
    ReplicaDefaults,
)
from tandem_operator.status.document import status_document
from tandem_operator.status.facts import Facts, Problem
from tests.unit.operator.samples import T1, answer, digest, facts, pod, ray_service, service, view

TOKEN = RayToken("tiny-token-0123abcd", "rays-own")
SETTINGS = OperatorSettings(
    allow_host_path=True, replica=ReplicaDefaults(image="registry/tandem:1")
)
MISSING = Problem("ClaimMissing", "spec.model.source: there is no claim 'weights'")
LOADING = view(
    ray_service(pending=digest("new")),
    pod("h", "new", head=True),
    new=answer("STARTING", status="DEPLOYING"),
)


def found(**spec: Any) -> dict[str, Any]:
    """The InferenceService as the API server has it."""
    document: dict[str, Any] = json.loads(service(**spec).model_dump_json(by_alias=True))
    document["metadata"] |= {"uid": "u-1", "generation": 1}
    return document


def observation(*children: dict[str, Any], **changes: Any) -> Observation:
    objects = {ObjectKey(one["kind"], one["metadata"]["name"]): one for one in children}
    known: dict[str, Any] = {
        "children": ObservedObjects(objects=objects, has_token=True),
        "pods": (),
        "answers": {},
        "ray_clusters": {},
        "missing": (),
        "has_kuberay": True,
    }
    return Observation(**{**known, **changes})


def written_kinds(parsed: ParsedSpec, there: Observation) -> set[str]:
    actions = decide(parsed, there).actions
    return {action.manifest["kind"] for action in actions if isinstance(action, ApplyObject)}


def test_everything_is_written_for_a_new_service() -> None:
    kinds = written_kinds(parse_spec(found(), SETTINGS, TOKEN), observation())

    assert kinds == {"RayService", "PodDisruptionBudget", "NetworkPolicy"}


def stored(parsed: ParsedSpec) -> list[dict[str, Any]]:
    """The desired objects as the API server has them after a reconcile."""
    assert parsed.desired is not None
    return [
        stamped(one, None, T1) if one["kind"] == "RayService" else dict(one)
        for one in parsed.desired.objects
    ]


def with_status(document: dict[str, Any], **scaling: Any) -> dict[str, Any]:
    return {**document, "status": {"scaling": {"mode": "Auto", **scaling}}}


def autoscaled() -> dict[str, Any]:
    document = found()
    document["spec"] = {
        "model": {"source": "file:///models/tandem-tiny"},
        "slo": {"ttft": {"target": "1s"}},
        "scaling": {"mode": "Auto", "maxReplicas": 8},
    }
    return document


def test_the_autoscaler_s_number_is_rendered() -> None:
    parsed = parse_spec(with_status(autoscaled(), desiredReplicas=5), SETTINGS, TOKEN)

    assert parsed.service is not None
    assert parsed.service.replicas == 5


def test_a_new_number_alone_is_no_change_of_the_version() -> None:
    before = parse_spec(autoscaled(), SETTINGS, TOKEN)
    after = parse_spec(with_status(autoscaled(), desiredReplicas=5), SETTINGS, TOKEN)

    intent = decide(after, observation(*stored(before)))

    assert intent.writes
    assert intent.scales
    assert intent.change is None


def test_a_new_number_with_a_new_setting_is_one() -> None:
    before = parse_spec(autoscaled(), SETTINGS, TOKEN)
    document = with_status(autoscaled(), desiredReplicas=5)
    document["spec"]["slo"]["ttft"]["target"] = "2s"

    intent = decide(parse_spec(document, SETTINGS, TOKEN), observation(*stored(before)))

    assert not intent.scales
    assert intent.change is not None


def test_without_kuberay_all_but_the_rayservice_is_written() -> None:
    kinds = written_kinds(parse_spec(found(), SETTINGS, TOKEN), observation(has_kuberay=False))

    assert kinds == {"PodDisruptionBudget", "NetworkPolicy"}


def test_nothing_is_written_while_something_is_missing() -> None:
    intent = decide(parse_spec(found(), SETTINGS, TOKEN), observation(missing=(MISSING,)))

    assert intent.actions == ()
    assert intent.problems == (MISSING,)


def test_a_spec_that_cannot_be_read_is_refused_with_every_problem() -> None:
    document = found()
    document["spec"] |= {"resources": {"cpu": 0}, "model": {"source": "/models"}}

    problems = decide(parse_spec(document, SETTINGS, TOKEN), observation()).problems

    assert len(problems) == 2
    assert {one.reason for one in problems} == {"InvalidSpec"}


def test_cards_of_an_unknown_profile_are_refused() -> None:
    document = found()
    document["spec"]["resources"] = {"npu": 1, "npuProfile": "nowhere"}
    parsed = parse_spec(document, SETTINGS, TOKEN)

    assert parsed.desired is None
    (problem,) = decide(parsed, observation()).problems
    assert "npuProfile 'nowhere' is not one of the operator's; allowed: atlas-" in problem.message


def test_a_rayservice_of_another_owner_is_left_alone_and_not_shown() -> None:
    foreign = ray_service(active=digest("theirs", "RUNNING"), endpoints=1)
    parsed, there = parse_spec(found(), SETTINGS, TOKEN), observation(foreign)
    intent = decide(parsed, there)

    known = collect_facts(found(), parsed, there, intent, write_failure=None, now=T1)

    assert intent.actions == ()
    assert intent.problems[0].reason == "NameTaken"
    assert known.ray is None


def test_a_rayservice_that_goes_is_not_applied() -> None:
    parsed = parse_spec(found(), SETTINGS, TOKEN)
    assert parsed.desired
    manifests = json.loads(json.dumps(parsed.desired.objects))
    for manifest in manifests:
        if manifest["kind"] == "RayService":
            manifest["metadata"] |= {"deletionTimestamp": T1, "generation": 1}
    there = observation(*manifests)
    intent = decide(parsed, there)

    assert intent.actions == ()
    known = collect_facts(found(), parsed, there, intent, write_failure=None, now=T1)
    assert not known.is_applied


def test_a_token_that_may_be_missing_is_made_and_is_no_change() -> None:
    parsed = parse_spec(found(), SETTINGS, TOKEN)
    assert parsed.desired
    manifests = json.loads(json.dumps(parsed.desired.objects))
    for manifest in manifests:
        manifest["metadata"]["generation"] = 1
    there = observation(*manifests)
    stale = replace(there, children=replace(there.children, has_token=False))

    intent = decide(parsed, stale)

    assert intent.actions == (CreateToken(TOKEN),)
    assert collect_facts(found(), parsed, stale, intent, write_failure=None, now=T1).is_applied


def again(known: Facts, deadline_in_s: float | None = 500.0, polled: int = 1) -> float | None:
    return requeue_after_s(
        known, status_document(known), deadline_in_s=deadline_in_s, polled=polled
    )


def test_a_reconciled_service_waits_for_events() -> None:
    assert again(facts()) is None
    assert is_reconciled(status_document(facts()))


def test_a_service_that_loads_is_requeued_every_few_seconds() -> None:
    assert again(facts(ray=LOADING)) == POLL_S


def test_with_many_of_them_each_is_requeued_less_often() -> None:
    assert again(facts(ray=LOADING), polled=200) == 200 / POLLS_PER_S


def test_without_a_running_head_it_is_requeued_at_the_deadline() -> None:
    assert again(facts(ray=None)) == 500.0
    assert again(facts(ray=None), deadline_in_s=None) is None


def test_after_a_write_it_is_requeued_at_once() -> None:
    wait_s = again(replace(facts(), is_applied=False))

    assert wait_s is not None
    assert wait_s <= POLL_S


def test_a_missing_dependency_is_requeued() -> None:
    assert again(facts(problems=(MISSING,))) is not None


def test_a_spec_that_cannot_be_read_waits_for_another() -> None:
    assert again(facts(problems=(Problem("InvalidSpec", "no"),))) is None


def test_a_write_conflict_names_the_object() -> None:
    actions = decide(parse_spec(found(), SETTINGS, TOKEN), observation()).actions

    problem = write_conflict(actions)

    assert problem
    assert "RayService 'tiny': another writer changes it back" in problem.message
    assert write_conflict(()) is None


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_reconciled_service_that_lost_a_replica_is_requeued(replicas: int) -> None:
    before = status_document(facts())
    ray = view(
        ray_service(active=digest("old", "RUNNING"), endpoints=replicas),
        pod("h", head=True),
        old=answer(*["RUNNING"] * replicas, "STARTING", target=replicas + 1),
    )
    known = facts(previous=before, service=service(replicas + 1), ray=ray)

    assert again(known) == POLL_S


NO_RULES = frozenset({"PrometheusRule"})


def with_slo() -> dict[str, Any]:
    document = found()
    del document["spec"]["engine"]
    document["spec"]["slo"] = {"ttft": {"target": "1s"}}
    return document


def test_rules_are_written_where_the_cluster_has_the_kind() -> None:
    parsed = parse_spec(with_slo(), SETTINGS, TOKEN)

    assert "PrometheusRule" in written_kinds(parsed, observation())
    assert written_kinds(parsed, observation(missing_kinds=NO_RULES)) == {
        "RayService",
        "PodDisruptionBudget",
        "NetworkPolicy",
    }


def test_rules_that_are_asked_for_are_written_in_any_case() -> None:
    """The API server's refusal is then in the status."""
    rules = PrometheusRuleSettings(enabled=True)
    under = SETTINGS.model_copy(update={"prometheus_rule": rules})
    parsed = parse_spec(with_slo(), under, TOKEN)

    assert "PrometheusRule" in written_kinds(parsed, observation(missing_kinds=NO_RULES))
