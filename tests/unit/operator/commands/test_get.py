"""The table of services."""

from typing import Any

from tandem_operator.commands.get import HEADER, line_of, row_of, widths_of

NOW = "2026-11-21T14:00:00Z"


def service(**more: Any) -> dict[str, Any]:
    metadata = {
        "name": "tiny",
        "namespace": "models",
        "creationTimestamp": "2026-11-21T13:00:00Z",
    }
    return {"metadata": metadata | more.pop("metadata", {}), **more}


STATUS = {
    "conditions": [{"type": "Ready", "status": "True"}],
    "replicas": {"summary": "1/2"},
    "model": "tandem-tiny",
    "url": "http://tiny.models.svc:8000",
    "reason": "Serving",
}


def test_a_row_has_what_kubectl_shows() -> None:
    assert row_of(service(status=STATUS), NOW) == (
        "models",
        "tiny",
        "True",
        "1/2",
        "tandem-tiny",
        "http://tiny.models.svc:8000",
        "Serving",
        "60m",
    )


def test_what_is_not_known_yet_stays_empty() -> None:
    assert row_of(service(), NOW) == ("models", "tiny", "", "", "", "", "", "60m")


def test_a_service_that_goes_says_so() -> None:
    going = service(status=STATUS, metadata={"deletionTimestamp": NOW})

    assert row_of(going, NOW)[6] == "Deleting"


def test_columns_stand_below_their_names() -> None:
    row = row_of(service(status=STATUS), NOW)
    widths = widths_of([HEADER, row])

    head, line = (line_of(one, widths, first=1) for one in (HEADER, row))

    assert head.startswith("NAME   READY   REPLICAS")
    assert line.index("http://") == head.index("URL")
    assert line.index("Serving") == head.index("REASON")
    assert line_of(row, widths, first=0).startswith("models")
