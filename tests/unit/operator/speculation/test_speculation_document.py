"""status.speculation: what is told, and when it is written once more."""

from typing import Any

import pytest

from tandem_operator.commands.replica_lines import draft_line
from tandem_operator.speculation.document import is_due, speculation_document
from tandem_operator.speculation.figures import Drafts
from tandem_operator.speculation.switch import has_speculation
from tests.unit.operator.commands.test_explanation import NOW as NOW_OF_EXPLANATION
from tests.unit.operator.commands.test_explanation import READY, service, status

NOW, LATER, MUCH_LATER = (f"2026-11-24T10:{minute}:00Z" for minute in ("00", "01", "06"))


def test_several_replicas_are_one_sentence() -> None:
    one = {"ngram": Drafts(100, 40), "draft": Drafts(300, 210)}
    other = {"ngram": Drafts(100, 60), "draft": Drafts(100, 70)}

    assert speculation_document([one, other], 2, NOW) == {
        "replicas": 2,
        "methods": [
            {"method": "draft", "draftTokens": 400, "acceptance": 0.7},
            {"method": "ngram", "draftTokens": 200, "acceptance": 0.5},
        ],
        "measuredAt": NOW,
        "message": "70% of 400 tokens of method draft and 50% of 200 tokens of method ngram were "
        "right, since the start of 2 replicas",
    }


def test_it_is_told_where_no_draft_was_checked() -> None:
    found = speculation_document([{"ngram": Drafts(0, 0)}], 1, NOW)

    assert found["methods"] == [{"method": "ngram", "draftTokens": 0}]
    assert found["message"] == "no draft token was checked on 1 replica yet"


@pytest.mark.parametrize(
    ("ready", "message"),
    [(0, "no replica runs"), (2, "none of 2 ready replicas shows its drafts")],
)
def test_replicas_that_show_nothing_are_told_of(ready: int, message: str) -> None:
    found = speculation_document([], ready, NOW)

    assert found == {"replicas": 0, "measuredAt": NOW, "message": message}


def document(now: str, *, accepted: int = 50, drafted: int = 100) -> dict[str, Any]:
    return speculation_document([{"ngram": Drafts(drafted, accepted)}], 1, now)


@pytest.mark.parametrize(
    ("after", "due"),
    [
        (document(MUCH_LATER), False),
        (document(LATER, accepted=52), False),
        (document(MUCH_LATER, accepted=52), True),
        (document(LATER, accepted=60), True),
        (document(LATER, drafted=0, accepted=0), True),
        (speculation_document([], 1, LATER), True),
    ],
)
def test_it_is_written_where_it_says_something_else(after: dict[str, Any], *, due: bool) -> None:
    assert is_due(document(NOW), after) == due
    assert is_due(None, after)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({}, False),
        ({"speculation": {}}, False),
        ({"speculation": {"method": "none"}}, False),
        ({"speculation": {"method": "ngram"}}, True),
        ({"speculation": {"draft": {"source": "pvc://models/a"}}}, True),
        ({"schedule": {"strategy": "speculative"}}, True),
        ({"schedule": {"strategy": "speculative"}, "speculation": {"method": "none"}}, False),
        ({"speculation": "auto"}, False),
        (None, False),
    ],
)
def test_a_service_asks_for_drafts(engine: Any, *, expected: bool) -> None:
    assert has_speculation({"spec": {"engine": engine}}) == expected


def test_an_explanation_has_a_line_where_there_are_drafts() -> None:
    found = service(status(READY, ready=1))
    assert draft_line(found, NOW_OF_EXPLANATION) is None

    found["spec"]["engine"] = {"speculation": {"method": "auto"}}
    assert draft_line(found, NOW_OF_EXPLANATION) == (
        "Speculation is on, and no replica has been read yet."
    )
    found["status"]["speculation"] = {"message": "50% right", "measuredAt": NOW_OF_EXPLANATION}
    assert draft_line(found, NOW_OF_EXPLANATION) == "50% right; read 0s ago."
