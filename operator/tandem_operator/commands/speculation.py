"""Draft tokens of a service in an explanation: the share that was right; pure."""

from typing import Final

from tandem_operator.commands.text import age_between, sentence
from tandem_operator.k8s.objects import Object
from tandem_operator.speculation.switch import has_speculation

DRAFTS: Final = "drafts"


def draft_line(service: Object, now: str) -> str | None:
    """Return the sentence on draft tokens; None: the service has none."""
    if not has_speculation(service):
        return None
    figures = (service.get("status") or {}).get("speculation") or {}
    if not figures.get("message"):
        return sentence("speculation is on, and no replica has been read yet")
    return sentence(f"{figures['message']}; read {age_between(figures['measuredAt'], now)} ago")
