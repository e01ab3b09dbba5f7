"""Facts that a reconcile has about a service, from which its status is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tandem_operator.status.pending_change import PendingChange
from tandem_operator.status.ray_view import RayView
from tandem_serve.api.spec import InferenceService


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that prevents the desired state."""

    reason: str
    """One word in CamelCase."""

    message: str
    """One sentence: what, where, and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about one service at one moment."""

    name: str
    namespace: str
    generation: int
    """Of the object whose spec was read."""

    previous: Mapping[str, Any]
    """Its status so far; empty: none yet."""

    service: InferenceService | None
    """The parsed spec; None: it cannot be parsed."""

    problems: tuple[Problem, ...] = ()
    """Reasons why it is not carried out; empty: it is."""

    has_kuberay: bool = True
    """True when the API server serves RayServices."""

    ray: RayView | None = None
    """The observed RayService; None: there is none."""

    last_change: str | None = None
    """Moment at which the operator last changed the RayService, but for its number of replicas."""

    is_applied: bool = True
    """True when nothing is left to write, but for the number of replicas."""

    change: PendingChange | None = None
    """Change of the running service that is about to be written."""

    write_failure: Problem | None = None
    """Failure of the last write."""

    is_overdue: bool = False
    """True when the change under way has taken longer than progressDeadlineSeconds."""

    now: str
    """This moment, as Kubernetes writes it."""
