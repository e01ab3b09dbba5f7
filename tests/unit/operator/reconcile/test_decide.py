"""Requeues of a service without an event."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tandem_operator.ray.token import RayToken
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
from tandem_operator.render.settings import OperatorSettings, ReplicaDefaults
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


def test_cards_are_refused() -> None:
    document = found()
    document["spec"]["resources"] = {"npu": 1, "npuProfile": "nowhere"}
    parsed = parse_spec(document, SETTINGS, TOKEN)

    assert parsed.desired is None
    # Whatever its profile: no device computes on cards yet.
    assert "reserves cards" in decide(parsed, observation()).problems[0].message


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
