"""Device of the replicas, out of their own /metrics → status.device; pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem_operator.ranks.document import has_moved

_LINE: Final = re.compile(rb"^tandem_device_info\{([^\n]{0,1024})\} 1(?:\.0)?$", re.MULTILINE)
_LABEL: Final = re.compile(rb'(?:^|,)([a-z_]{1,32})="([^"\\\n]{0,256})"')
_FIELDS: Final = {
    "device": "type",
    "name": "name",
    "software": "software",
    "memory_bytes": "memoryBytes",
}
"""Label of the metric → field of the status."""
_MAX_DIGITS: Final = 18

Document = dict[str, Any]


def read_device(body: bytes) -> Document | None:
    """Return the fields that a text of Prometheus' format has; None: it has not all of them."""
    line = _LINE.search(body)
    if line is None:
        return None
    labels = dict(_LABEL.findall(line[1]))
    fields: Document = {
        field: labels[label.encode()].decode(errors="replace")
        for label, field in _FIELDS.items()
        if label.encode() in labels
    }
    size = fields.get("memoryBytes", "")
    if len(fields) < len(_FIELDS) or not (size.isascii() and size.isdigit()):
        return None
    if len(size) > _MAX_DIGITS:
        return None
    return {**fields, "memoryBytes": int(size)}


def device_document(replicas: Sequence[Mapping[str, Any]], now: str) -> Document | None:
    """Return status.device: that of the replica with the least memory; None: nothing is known.

    Args:
        replicas: The devices of those that were read.
        now: This moment, as Kubernetes writes it.
    """
    if not replicas:
        return None
    least = min(replicas, key=lambda device: (device["memoryBytes"], device["name"]))
    return {**least, "replicas": len(replicas), "measuredAt": now}


def is_due(before: Mapping[str, Any] | None, after: Document) -> bool:
    """Return True when `after` names another device, its software, or more or less memory."""
    if before is None or has_moved(before.get("memoryBytes", 0), after["memoryBytes"]):
        return True
    return any(before.get(field) != after[field] for field in ("type", "name", "software"))
