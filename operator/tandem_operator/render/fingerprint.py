"""Short hashes of JSON values, and documents with hashes in place of long values; pure."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

MAX_LEAF_LENGTH: Final = 512
"""Characters of the longest value, as JSON, that is not replaced by its hash."""

_DIGITS: Final = 32


def fingerprint(value: Any) -> str:
    """A hash of a JSON value that does not depend on the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def digested(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return `document` with a hash in place of each long value; done twice it is the same."""
    return {name: _digested(value) for name, value in document.items()}


def version_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a resolved spec that makes a version: all but the number of replicas."""
    return digested({name: value for name, value in spec.items() if name != "scaling"})


def _digested(value: Any) -> Any:
    if isinstance(value, Mapping):
        return digested(value)
    return f"hash {fingerprint(value)}" if len(json.dumps(value)) > MAX_LEAF_LENGTH else value
