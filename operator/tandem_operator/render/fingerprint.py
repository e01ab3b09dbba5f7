"""Short hashes of JSON values; pure."""

import hashlib
import json
from typing import Any, Final

_DIGITS: Final = 32


def fingerprint(value: Any) -> str:
    """A hash of a JSON value that does not depend on the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
