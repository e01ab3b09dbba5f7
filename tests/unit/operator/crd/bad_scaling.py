"""Numbers of replicas that are refused."""

from collections.abc import Iterator
from typing import Any, Final

from tests.unit.operator.crd.forms import Bad, wrong_value

SCALING: Final = "spec.scaling"
WITH_TARGET: Final[dict[str, Any]] = {"spec.slo.ttft.target": "1.5s"}


def bad_scaling() -> Iterator[Bad]:
    """One for every rule, and for every part of a cron expression."""
    yield wrong_value(
        f"{SCALING}.mode", "Off", "Unsupported value", "allowed: Manual, Recommend, Auto, External"
    )
    yield wrong_value(f"{SCALING}.replicas", -1, "greater than or equal to 0", "0 to 1000")
    yield Bad(
        "no replica, and a minimum of one",
        {f"{SCALING}.replicas": 0},
        f"{SCALING}.replicas",
        "replicas 0 is below minReplicas 1; set minReplicas: 0, which allows a service without",
    )
    yield Bad(
        "a maximum below the minimum",
        {f"{SCALING}.minReplicas": 3, f"{SCALING}.maxReplicas": 2},
        f"{SCALING}.maxReplicas",
        "maxReplicas 2 is below minReplicas 3; raise maxReplicas or lower minReplicas",
    )
    for mode in ("Auto", "Recommend"):
        yield Bad(
            f"mode {mode} without a maximum",
            {**WITH_TARGET, f"{SCALING}.mode": mode},
            f"{SCALING}.maxReplicas",
            f"mode {mode} needs maxReplicas, the most replicas that it may ask for; add it",
        )
        yield Bad(
            f"mode {mode} without a target",
            {f"{SCALING}.mode": mode, f"{SCALING}.maxReplicas": 2},
            f"{SCALING}.mode",
            f"scaling.mode {mode} needs a target of slo to hold; add slo.ttft or slo.tpot",
        )
    for start in (
        "0 8 * *",
        "60 8 * * *",
        "0 24 * * *",
        "0 8 0 * *",
        "0 8 * 13 *",
        "0 8 * * 8",
        "*/0 * * * *",
        "0 8 * * MONDAY",
        "0  8 * * *",
        "@daily",
    ):
        yield _scheduled("start", start, f"'{start}' is not a cron expression; write minute")
    for duration in ("10", "0h", "1d", "10000m"):
        yield _scheduled("duration", duration, f"'{duration}' is not a duration; write minutes")
    for zone in ("+02:00", "Europe/", "Europe Berlin"):
        yield _scheduled("timeZone", zone, f"'{zone}' is not the name of a time zone; write one")


def _scheduled(field: str, value: str, words: str) -> Bad:
    entry = {"start": "0 8 * * *", "duration": "1h", "minReplicas": 2, field: value}
    return Bad(
        f"a minimum with the {field} {value!r}",
        {f"{SCALING}.schedule": [entry]},
        f"{SCALING}.schedule[0].{field}",
        words,
    )
