"""The token of a service's Ray, derived from one key of the operator; pure.

A random token would have to be read back, and the right to read one Secret of a namespace whose
names are not known beforehand is the right to read all of its Secrets. A derived one is only ever
written. One that was deleted comes back the same, so that running pods, which read it at their
start, and new ones have one token.
"""

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from typing import Final

from tandem_operator.k8s import names

KEY_BYTES: Final = 32
"""Length of the operator's key."""


@dataclass(frozen=True, slots=True)
class RayToken:
    """The token of one service's Ray."""

    secret: str
    """The Secret that holds it. Another token has another Secret, and thereby another Ray cluster:
    running Ray processes cannot change their token."""

    value: str = field(repr=False)


def ray_token(key: bytes, *, namespace: str, service: str, uid: str) -> RayToken:
    """Derive the token of this InferenceService, whose object has the id `uid`."""
    about = f"{namespace}/{service}/{uid}".encode()
    digest = hmac.digest(key, about, hashlib.sha256)
    value = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return RayToken(names.token_secret(service, hashlib.sha256(digest).hexdigest()), value)
