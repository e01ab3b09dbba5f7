"""The time zones of a manifest's schedule, checked where this machine knows them.

The CRD cannot: an API server has no list of zones that a rule could ask.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from zoneinfo import available_timezones

from tandem_serve.api.manifest import ManifestError
from tandem_serve.api.spec import InferenceService


def check_time_zones(service: InferenceService) -> None:
    """Refuse zones that are not known; a machine without any list of them refuses none.

    Raises:
        ManifestError: the schedule names such a zone.
    """
    if not service.spec.scaling.schedule:
        # The list is read from hundreds of files.
        return
    known = available_timezones()
    problems = [*_problems(service, known)] if known else []
    if problems:
        raise ManifestError(problems)


def _problems(service: InferenceService, known: set[str]) -> Iterator[str]:
    for index, window in enumerate(service.spec.scaling.schedule):
        name = window.time_zone
        if name in known:
            continue
        near = get_close_matches(name, known, n=1)
        advice = f"did you mean '{near[0]}'?" if near else "write one such as Europe/Berlin or UTC"
        yield f"spec.scaling.schedule.{index}.timeZone: '{name}' is not a known time zone; {advice}"
