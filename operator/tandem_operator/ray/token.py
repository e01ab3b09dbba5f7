"""The token of a service's Ray, worked out of one key of the operator; pure.

A token that was made by chance would have to be read back, and the right to read one Secret of a
namespace whose names are not known beforehand is the right to read all of its Secrets. Worked out,
it is only ever written. One that was deleted comes back as it was, so that running pods, which read
it when they started, and new ones still understand each other.
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
    """The Secret that holds it. Another token has another one, and thereby another Ray cluster:
    Ray's processes cannot take a new token over."""

    value: str = field(repr=False)


def ray_token(key: bytes, *, namespace: str, service: str, uid: str) -> RayToken:
    """The token of the InferenceService of this place, whose object has the id `uid`."""
    about = f"{namespace}/{service}/{uid}".encode()
    digest = hmac.digest(key, about, hashlib.sha256)
    value = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return RayToken(names.token_secret(service, hashlib.sha256(digest).hexdigest()), value)
