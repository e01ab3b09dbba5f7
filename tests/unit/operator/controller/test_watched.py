"""Events that lead to a reconcile."""

from typing import Any

import pytest

from tandem_operator.controller.watched import WATCHED, EventFilter, Watched
from tandem_operator.k8s.kinds import CHILDREN, NETWORK_POLICY, POD


def item(generation: int = 1, **changes: Any) -> dict[str, Any]:
    metadata = {"namespace": "demo", "name": "tiny", "generation": generation}
    return {"metadata": {**metadata, **changes.pop("metadata", {})}, **changes}


@pytest.fixture
def events() -> EventFilter:
    return EventFilter(Watched(kind=NETWORK_POLICY, ignores_status=True))


def test_a_status_alone_does_not_count(events: EventFilter) -> None:
    assert events.passes(item(), is_gone=False)

    assert not events.passes(item(status={"phase": "x"}), is_gone=False)


@pytest.mark.parametrize(
    "changed",
    [
        item(generation=2),
        item(metadata={"labels": {"a": "b"}}),
        item(metadata={"annotations": {"a": "b"}}),
        item(metadata={"ownerReferences": []}),
    ],
    ids=["spec", "labels", "annotations", "owner"],
)
def test_everything_else_counts(events: EventFilter, changed: dict[str, Any]) -> None:
    events.passes(item(), is_gone=False)

    assert events.passes(changed, is_gone=False)
    assert not events.passes(changed, is_gone=False)


def test_a_deletion_counts_and_so_does_its_successor(events: EventFilter) -> None:
    events.passes(item(), is_gone=False)

    assert events.passes(item(), is_gone=True)
    assert events.passes(item(), is_gone=False)


def test_a_watch_that_restarts_delivers_all_again(events: EventFilter) -> None:
    events.passes(item(), is_gone=False)

    events.reset()

    assert events.passes(item(), is_gone=False)


def test_without_the_filter_every_event_counts() -> None:
    events = EventFilter(Watched(kind=POD))

    assert all(events.passes(item(), is_gone=False) for _ in range(2))


def test_every_child_is_watched() -> None:
    assert set(CHILDREN.values()) <= {watched.kind for watched in WATCHED}
