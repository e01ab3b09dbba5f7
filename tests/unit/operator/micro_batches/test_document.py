"""status.microBatch: what is told, and when it is written once more."""

from dataclasses import replace
from typing import Any

import pytest

from tandem_operator.micro_batches.document import is_due, micro_batch_document
from tandem_operator.micro_batches.figures import Figures

NOW, LATER, MUCH_LATER = (f"2026-11-24T10:{minute}:00Z" for minute in ("00", "01", "06"))
BOTH = Figures(cuts_prefill=True, cuts_decode=True, overlap=0.9, cost=7, num_kv_blocks=93)
HALF = Figures(cuts_prefill=True, cuts_decode=False, overlap=0.8, cost=5, num_kv_blocks=95)


def test_several_replicas_are_one_sentence() -> None:
    assert micro_batch_document([BOTH, HALF], 2, NOW) == {
        "replicas": 2,
        "prefillReplicas": 2,
        "decodeReplicas": 1,
        "overlap": 0.85,
        "kvBlocks": 7,
        "kvBlocksOf": 100,
        "measuredAt": NOW,
        "message": "steps with prefill are cut on 2 of 2, and decode steps on 1 of 2 replicas; 85% "
        "of what could overlap did in the last hour; they cost 7 of 100 KV blocks of a replica",
    }


def test_no_overlap_is_told_where_no_step_was_cut() -> None:
    found = micro_batch_document([replace(HALF, overlap=None)], 1, NOW)

    assert "overlap" not in found
    assert "1 of 1, and decode steps on 0 of 1 replica; no step was cut in the last" in str(found)


@pytest.mark.parametrize(
    ("ready", "message"),
    [(0, "no replica runs"), (2, "none of 2 ready replicas shows its figures")],
)
def test_replicas_that_show_nothing_are_told_of(ready: int, message: str) -> None:
    found = micro_batch_document([], ready, NOW)

    assert found == {"replicas": 0, "measuredAt": NOW, "message": message}


def document(now: str = NOW, **changes: Any) -> dict[str, Any]:
    return micro_batch_document([replace(BOTH, **changes)], 1, now)


@pytest.mark.parametrize(
    ("after", "due"),
    [
        (document(MUCH_LATER), False),
        (document(LATER, overlap=0.92), False),
        (document(MUCH_LATER, overlap=0.92), True),
        (document(LATER, overlap=0.7), True),
        (document(LATER, overlap=None), True),
        (document(LATER, cuts_decode=False), True),
        (document(LATER, cost=8), True),
    ],
)
def test_it_is_written_where_it_says_something_else(after: dict[str, Any], *, due: bool) -> None:
    assert is_due(document(), after) == due
    assert is_due(None, after)
