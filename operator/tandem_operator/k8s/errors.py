"""What can go wrong between the operator and the API server, sorted by what to do about it.

```
KubeError
├── Transient           tried again soon, and not worth a word before it lasts
│   ├── Unreachable     no answer
│   ├── Overloaded      429 or 5xx
│   └── Conflict        409: the object changed meanwhile
├── NotLeading          not even tried: another process may lead by now
├── NotFound             404 of one object
├── KindMissing         404 of the whole kind: its CRD is not installed
├── Forbidden           401 or 403
└── Refused             the rest: the object itself is at fault
```
"""

from typing import ClassVar


class KubeError(Exception):
    """The API server did not do what was asked; the text is one sentence."""

    reason: ClassVar[str] = "ApiError"
    """One word for conditions and metrics."""

    retry_after_s: float = 0.0
    """Seconds that the API server asks to wait before the next try."""


class Transient(KubeError):
    """It may work when it is tried again."""


class Unreachable(Transient):
    """The API server did not answer."""

    reason = "ApiUnreachable"


class Overloaded(Transient):
    """The API server cannot answer now."""

    reason = "ApiOverloaded"


class Conflict(Transient):
    """The object is not what it was when it was read."""

    reason = "ApiConflict"


class NotLeading(KubeError):
    """This process may not write: its lease may have run out."""

    reason = "NotLeading"


class NotFound(KubeError):
    """There is no such object."""

    reason = "ApiNotFound"


class KindMissing(KubeError):
    """The API server does not know the kind: its CustomResourceDefinition is not installed."""

    reason = "KindMissing"


class Forbidden(KubeError):
    """The operator may not do this."""

    reason = "ApiForbidden"


class Refused(KubeError):
    """The API server does not take the object."""

    reason = "ApiRefused"
