"""The result of rendering: the desired objects of one service."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tandem_operator import reasons
from tandem_operator.ray.token import RayToken


class RenderError(Exception):
    """A service cannot be rendered under the operator's settings; the text is one sentence."""

    reason: ClassVar[str] = reasons.UNSATISFIABLE
    """Reason for conditions."""


class HostPathNotAllowed(RenderError):
    """A service names a folder of the node, and the settings do not allow it."""

    reason = reasons.HOST_PATH_NOT_ALLOWED


@dataclass(frozen=True, slots=True, kw_only=True)
class Desired:
    """Everything that one service needs in its namespace."""

    objects: tuple[Mapping[str, Any], ...]
    """Complete manifests, with labels, owner and the hash of what was applied."""

    emptied: tuple[Mapping[str, Any], ...] = ()
    """Objects that another spec of the service has, without content. Those that exist become so:
    the operator has no right to delete."""

    may_lack: frozenset[str] = frozenset()
    """Kinds of objects that are left out where the API server does not serve them, or refuses."""

    token: RayToken
    """Ray's token; its Secret is created once, never rendered."""
