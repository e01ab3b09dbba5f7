"""The status of a service without replicas: as it should be, falling asleep, waking up."""

from typing import Any, Final

from tandem_operator.status.conditions import find_condition
from tandem_operator.status.document import status_document
from tandem_operator.status.ray_view import RayView
from tandem_serve.api.document import LiveSettings
from tandem_serve.api.spec import InferenceService
from tests.unit.operator.samples import answer, digest, facts, pod, ray_service, service, view

AUTO: Final[dict[str, Any]] = {"slo": {"ttft": {"target": "1s"}}}


def sleeper(replicas: int = 0, **scaling: Any) -> InferenceService:
    return service(scaling={"minReplicas": 0, "replicas": replicas, **scaling})


def head(*, behind_endpoint: bool = True) -> dict[str, Any]:
    found = pod("head", head=True)
    found["metadata"]["labels"]["ray.io/serve"] = str(behind_endpoint).lower()
    return found


def ray(
    *states: str,
    target: int = 0,
    behind_endpoint: bool = True,
    workers: int = 0,
    **settings: Any,
) -> RayView:
    """Return the view of a cluster whose head is behind the endpoint, as its workers are."""
    told = answer(*states, target=target, **settings)
    (handed,) = told["applications"]["tiny"]["deployed_app_config"]["deployments"]
    if not target:
        del handed["num_replicas"]
    pods = [pod(f"worker-{number}") for number in range(workers)]
    found = ray_service(active=digest("old", "RUNNING"), endpoints=workers + behind_endpoint)
    return view(found, head(behind_endpoint=behind_endpoint), *pods, old=told)


def told(status: dict[str, Any], kind: str) -> tuple[str, str]:
    found = find_condition(status, kind)
    return found["status"], found["reason"]


def test_a_service_without_replicas_is_as_it_should_be() -> None:
    status = status_document(facts(service=sleeper(), ray=ray()))

    assert told(status, "Ready") == ("True", "ScaledToZero")
    assert told(status, "Progressing") == ("False", "Reconciled")
    assert told(status, "ModelLoaded") == ("False", "ScaledToZero")
    assert told(status, "RayReady") == ("True", "HeadReady")
    assert status["reason"] == "ScaledToZero"
    assert status["replicas"] == {"desired": 0, "ready": 0, "summary": "0/0"}
    assert "refuses requests with 503 and Retry-After" in status["message"]
    assert status["message"].endswith("none starts a replica")


def test_in_mode_auto_it_says_that_a_request_starts_a_replica() -> None:
    asleep = service(scaling={"mode": "Auto", "minReplicas": 0, "maxReplicas": 2}, **AUTO)

    settings = LiveSettings.of(asleep).document()
    status = status_document(facts(service=asleep.scaled_to(0), ray=ray(user_config=settings)))

    assert status["message"].endswith("the first of them starts a replica")


def test_no_deadline_is_missed_by_replicas_that_are_not_asked_for() -> None:
    status = status_document(facts(service=sleeper(), ray=ray(), is_overdue=True))

    assert told(status, "Progressing") == ("False", "Reconciled")


def test_it_is_not_ready_while_the_head_is_not_behind_the_endpoint() -> None:
    status = status_document(facts(service=sleeper(), ray=ray(behind_endpoint=False)))

    assert told(status, "Ready") == ("False", "ScaledToZero")


def test_the_last_replica_answers_until_it_is_gone() -> None:
    before = status_document(facts(service=sleeper(1), ray=ray("RUNNING", target=1, workers=1)))
    falling = ray("RUNNING", target=1, workers=1)

    status = status_document(facts(service=sleeper(), ray=falling, previous=before))

    assert told(before, "Ready") == ("True", "Serving")
    assert told(status, "Ready") == ("True", "Serving")
    assert status["replicas"]["summary"] == "1/0"


def test_a_service_that_wakes_up_is_not_ready_before_its_replica_is() -> None:
    asleep = status_document(facts(service=sleeper(), ray=ray()))
    waking = ray("STARTING", target=1)

    status = status_document(facts(service=sleeper(1), ray=waking, previous=asleep))

    assert told(status, "Ready") == ("False", "Loading")
    assert told(status, "Progressing") == ("False", "Reconciled"), "a number is no change"
    assert status["replicas"]["summary"] == "0/1"


def test_the_head_is_no_replica_while_ray_lists_none() -> None:
    building = answer(target=1)
    building["applications"]["tiny"]["deployments"] = {}
    found = ray_service(active=digest("old", "RUNNING"), endpoints=1)

    waking = view(found, head(), old=building)

    assert not waking.is_serving
    assert waking.ready_replicas == 0
