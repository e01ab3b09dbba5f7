"""Errors of requests to the API server, sorted by what to do about them.

```
KubeError
├── Transient           retried soon, and reported only when it persists
│   ├── Unreachable     no answer
│   ├── Overloaded      429 or 5xx
│   └── Conflict        409: the object changed meanwhile
├── NotLeading          not sent: another process may lead by now
├── NotFound            404 of one object
├── KindMissing         404 of the whole kind: its CRD is not installed
├── Unauthorized        401: the credentials are not accepted
├── Forbidden           403
└── Refused             the rest: the object itself is wrong
```
"""

from typing import ClassVar


class KubeError(Exception):
    """A request to the API server failed; the text is one sentence."""

    reason: ClassVar[str] = "ApiError"
    """Reason for conditions and metrics."""

    retry_after_s: float = 0.0
    """Seconds that the API server asks to wait before a retry."""


class Transient(KubeError):
    """A retry may succeed."""


class Unreachable(Transient):
    """The API server did not answer."""

    reason = "ApiUnreachable"


class Overloaded(Transient):
    """The API server cannot answer now."""

    reason = "ApiOverloaded"


class Conflict(Transient):
    """The object has changed since it was read, or exists already."""

    reason = "ApiConflict"


class NotLeading(KubeError):
    """This process may not write: its lease may have run out."""

    reason = "NotLeading"


class NotFound(KubeError):
    """The object does not exist."""

    reason = "ApiNotFound"


class KindMissing(KubeError):
    """The API server does not serve the kind: its CustomResourceDefinition is not installed."""

    reason = "KindMissing"


class Unauthorized(KubeError):
    """The API server does not accept the operator's credentials."""

    reason = "ApiUnauthorized"


class Forbidden(KubeError):
    """The operator lacks the right to do this."""

    reason = "ApiForbidden"


class Refused(KubeError):
    """The API server rejects the object."""

    reason = "ApiRefused"
