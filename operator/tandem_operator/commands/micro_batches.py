"""Micro-batches of a service in an explanation: what they bring, and what they cost; pure."""

from typing import Final

from tandem_operator.commands.text import age_between, sentence
from tandem_operator.k8s.objects import Object
from tandem_operator.micro_batches.switch import has_micro_batches

LABEL: Final = "micro-batch"


def micro_batch_line(service: Object, now: str) -> str | None:
    """Return the sentence on micro-batches; None: the service has none."""
    if not has_micro_batches(service):
        return None
    figures = (service.get("status") or {}).get("microBatch") or {}
    if not figures.get("message"):
        return sentence("micro-batches are on, and no replica has been read yet")
    age = age_between(figures["measuredAt"], now)
    return sentence(f"{figures['message']}; read {age} ago")
