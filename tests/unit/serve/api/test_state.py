"""Facts read out of Ray's answers, logs and tables."""

from typing import Any

import pytest

from tandem_serve.api.state import (
    last_startup_line,
    root_cause,
    routed_replicas,
    service_state,
)

TRACEBACK = """\
A replica failed to start with exception. Retrying 2 more time(s). Error:
\x1b[36mray::ServeReplica:tiny:replica.initialize_and_get_metadata()\x1b[39m (pid=7, ip=127.0.0.1)
  File "ray/serve/_private/replica.py", line 1, in initialize_and_get_metadata
    raise RuntimeError(traceback.format_exc()) from None
RuntimeError: Traceback (most recent call last):
  File "tandem_serve/replica.py", line 2, in reconfigure
    return build_engine(config)
tandem_engine.api.errors.CheckpointError: /m/model.safetensors is cut off: 3 of 9 bytes are there.
"""


def answer(application: dict[str, Any], **deployment: Any) -> dict[str, Any]:
    deployments = {"replica": deployment} if deployment else {}
    return {"applications": {"tiny": {"message": "", "deployments": deployments} | application}}


def replica(state: str, pid: int | None = 7) -> dict[str, Any]:
    return {"replica_id": "abc", "state": state} | ({"pid": pid} if pid else {})


@pytest.mark.parametrize("others", [[], [replica("STOPPING", pid=8)]])
def test_a_service_is_ready_when_all_desired_replicas_run(others: list[Any]) -> None:
    found = [replica("RUNNING"), *others]

    state = service_state(
        answer({"status": "RUNNING"}, target_num_replicas=1, replicas=found), "tiny"
    )

    assert state is not None
    assert state.is_ready
    assert state.running[0].pid == 7


@pytest.mark.parametrize(
    ("status", "target", "replicas"),
    [
        ("DEPLOYING", 1, ["RUNNING"]),
        ("RUNNING", 2, ["RUNNING"]),
        ("RUNNING", 1, ["RUNNING", "STARTING"]),
        ("RUNNING", 1, ["UPDATING"]),
    ],
)
def test_a_service_is_not_ready_before(status: str, target: int, replicas: list[str]) -> None:
    found = [replica(one) for one in replicas]

    state = service_state(
        answer({"status": status}, target_num_replicas=target, replicas=found), "tiny"
    )

    assert state is not None
    assert not state.is_ready


def test_a_service_that_is_being_built_has_neither_replicas_nor_failure() -> None:
    state = service_state(answer({"status": "DEPLOYING"}), "tiny")

    assert state is not None
    assert state.replicas == ()
    assert state.failure is None
    assert not state.is_ready


def test_a_service_that_ray_does_not_know_has_no_state() -> None:
    assert service_state({"applications": {}}, "tiny") is None


def test_the_first_failed_start_is_a_failure_with_the_engines_words() -> None:
    state = service_state(
        answer({"status": "DEPLOYING"}, message=TRACEBACK, target_num_replicas=1), "tiny"
    )

    assert state is not None
    assert state.failure == "/m/model.safetensors is cut off: 3 of 9 bytes are there."
    assert "\x1b" not in state.details


def test_a_build_that_failed_is_told_from_the_applications_message() -> None:
    message = "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module 'x'\n"

    state = service_state(answer({"status": "DEPLOY_FAILED", "message": message}), "tiny")

    assert state is not None
    assert state.failure == "ModuleNotFoundError: No module 'x'"


def test_a_message_without_an_error_is_told_by_its_last_line() -> None:
    assert root_cause("one\n\n two \n") == "two"
    assert root_cause("") == ""


def test_the_last_word_of_a_start_is_found_among_other_lines() -> None:
    log = (
        "INFO 2026-11-21 11:41:26,349 tiny_replica 6x -- Started initializing replica.\n"
        "INFO 2026-11-21 11:41:33,642 tiny_replica 6x -- start-up: Loading weights: 10 %\n"
        "INFO 2026-11-21 11:41:33,683 tiny_replica 6x -- start-up: Loading weights: 90 %\n"
        "INFO 2026-11-21 11:41:34,683 tiny_replica 6x -- GET /health 503\n"
    )

    assert last_startup_line(log) == "Loading weights: 90 %"
    assert last_startup_line("INFO nothing") is None


def test_only_replicas_that_haproxy_calls_up_count_as_routed() -> None:
    table = (
        "# pxname,svname,scur,status\n"
        "http-tiny,SERVE_REPLICA_tiny-Replica-a,0,UP\n"
        "http-tiny,SERVE_REPLICA_tiny-Replica-b,0,DOWN\n"
        "http-tiny,SERVE_PROXY_ACTOR-fallback-x,0,UP\n"
        "http-tiny,BACKEND,0,UP\n"
        "http-other,SERVE_REPLICA_other-replica-a,0,UP\n"
    )

    assert routed_replicas(table, "tiny") == {"a"}
    assert routed_replicas("", "tiny") == frozenset()
