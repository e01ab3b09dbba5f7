"""Lines of an explanation that come from the replicas' own pages; pure.

They say what micro-batches bring, which share of draft tokens was right, what replicas compute on,
and what each rank holds.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from pydantic import ValidationError

from tandem_operator.commands.snapshot import ranks_in
from tandem_operator.commands.text import age_between, sentence, size_of
from tandem_operator.k8s.objects import Object
from tandem_operator.micro_batches.switch import has_micro_batches
from tandem_operator.speculation.switch import has_speculation
from tandem_serve.api.spec import ResourcesSpec

MICRO_BATCHES: Final = "micro-batch"
DRAFTS: Final = "drafts"
MEMORY: Final = "memory"
DEVICE: Final = "device"

_PARTS: Final = (
    ("weightsBytes", "weights"),
    ("stepBytes", "largest step"),
    ("kvCacheBytes", "KV cache"),
    ("hostCacheBytes", "host blocks"),
)


def micro_batch_line(service: Object, now: str) -> str | None:
    """Return the sentence on micro-batches; None: the service has none."""
    if not has_micro_batches(service):
        return None
    figures = (service.get("status") or {}).get("microBatch") or {}
    if not figures.get("message"):
        return sentence("micro-batches are on, and no replica has been read yet")
    age = age_between(figures["measuredAt"], now)
    return sentence(f"{figures['message']}; read {age} ago")


def draft_line(service: Object, now: str) -> str | None:
    """Return the sentence on draft tokens; None: the service has none."""
    if not has_speculation(service):
        return None
    figures = (service.get("status") or {}).get("speculation") or {}
    if not figures.get("message"):
        return sentence("speculation is on, and no replica has been read yet")
    return sentence(f"{figures['message']}; read {age_between(figures['measuredAt'], now)} ago")


def device_line(service: Object, now: str) -> str | None:
    """Return the sentence on what replicas compute on; None: none has been read yet."""
    device = (service.get("status") or {}).get("device") or {}
    if not device.get("name"):
        return None
    text = (
        f"{device['name']} ({device['type']}), {size_of(device['memoryBytes'])} for a rank, "
        f"{device['software']}"
    )
    return sentence(f"{text}; read {age_between(device['measuredAt'], now)} ago")


def memory_lines(service: Object, now: str) -> list[str]:
    """Return a sentence for ranks that hold the same; before one is read, for what all may take."""
    status = (service.get("status") or {}).get("ranks") or {}
    ranks = status.get("memory") or ()
    if not ranks:
        return [sentence(_unread(service.get("spec") or {}))]
    age = age_between(status["measuredAt"], now)
    alike = [list(group) for _, group in groupby(ranks, lambda group: list(_sizes(group)))]
    return [
        sentence(f"{_subject(group, len(ranks))}: {_text(group)}; read {age} ago")
        for group in alike
    ]


def _unread(spec: Object) -> str:
    """The part that the manifest decides on, and how to learn of the others."""
    count = ranks_in(spec)
    try:
        resources = ResourcesSpec.model_validate(spec.get("resources") or {}, by_name=False)
    except ValidationError:
        return "no replica has been read yet"  # another sentence tells of a spec that is refused
    owner = f"each of {count} ranks" if count > 1 else "a replica"
    if resources.npu:
        return (
            f"{owner} has a card; its memory, and what weights, KV cache and largest step take of "
            "it, is not known before a replica has started and been read"
        )
    text = (
        f"{owner} may take {size_of(resources.memory_bytes // count)}; what weights, KV cache and "
        "largest step take of it is not known before a replica has started and been read"
    )
    if count == 1:
        return text
    return f"{text}; tandem validate estimates it where the checkpoint's config.json is"


def _subject(group: Sequence[Mapping[str, Any]], count: int) -> str:
    first, last = group[0]["rank"], group[-1]["rank"]
    if count == 1:
        return "a replica"
    return f"rank {first}" if first == last else f"each of ranks {first} to {last}"


def _text(group: Sequence[Mapping[str, Any]]) -> str:
    # What a process takes differs by a little from one to the next.
    process = max(part.get("processBytes", 0) for part in group)
    return ", ".join([*_sizes(group[0]), f"process {size_of(process)}"])


def _sizes(rank: Mapping[str, Any]) -> Iterator[str]:
    for field, name in _PARTS:
        if size := rank.get(field):
            yield f"{name} {size_of(size)}"
