"""What one reconcile knows of a service: all that its status is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem_operator.status.pending_change import PendingChange
from tandem_operator.status.ray_view import RayView
from tandem_serve.api.spec import InferenceService


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that stands in the way."""

    reason: str
    """One word in CamelCase."""

    message: str
    """One sentence: what, where, and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One service at one moment."""

    name: str
    namespace: str
    generation: int
    """Of the object whose spec was read."""

    previous: Mapping[str, Any]
    """The status that it has; empty: none yet."""

    service: InferenceService | None
    """What is asked for; None: the spec cannot be read."""

    problems: tuple[Problem, ...] = ()
    """Why it is not carried out; empty: it is."""

    has_kuberay: bool = True
    """Whether the API server knows RayServices."""

    ray: RayView | None = None
    """What runs; None: there is no RayService."""

    last_write: str | None = None
    """When the operator last changed the RayService."""

    is_applied: bool = True
    """Whether nothing is left to write."""

    change: PendingChange | None = None
    """What writing will change of the running service."""

    write_failure: Problem | None = None
    """Why the last try to write failed."""

    is_overdue: bool = False
    """Whether the change under way has taken longer than progressDeadlineSeconds."""

    now: str
    """This moment, as Kubernetes writes it."""
