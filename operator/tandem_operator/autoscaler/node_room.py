"""Reads the nodes and what their pods take, when a service is about to grow."""

import asyncio
import logging
import time
from typing import Any, Final

import msgspec

from tandem_operator.autoscaler.room import Node, PlacedPod, nodes_with_room
from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import Forbidden, KubeError
from tandem_operator.k8s.kinds import NODE, POD

_KEPT_S: Final = 15.0
"""Seconds for which one reading serves all services that grow."""

_AFTER_FORBIDDEN_S: Final = 300.0

_log: Final = logging.getLogger(__name__)


class _Nodes(msgspec.Struct):
    items: list[dict[str, Any]]


class _Pods(msgspec.Struct):
    items: list[PlacedPod]


_NODES: Final = msgspec.json.Decoder(_Nodes)
_PODS: Final = msgspec.json.Decoder(_Pods)
_PLACED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


class NodeReader:
    """Nodes with what is left of them, read at most once in a while."""

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube
        self._lock = asyncio.Lock()
        self._found: tuple[Node, ...] | None = None
        self._until = 0.0

    async def nodes(self) -> tuple[Node, ...] | None:
        """Return the nodes that take pods; None: they cannot be read."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._found, kept_s = await self._read()
                self._until = time.monotonic() + kept_s
            return self._found

    async def _read(self) -> tuple[tuple[Node, ...] | None, float]:
        """Return the nodes, and the seconds for which they may be used."""
        try:
            nodes, pods = await asyncio.gather(
                self._kube.scan(NODE, _NODES, fields=""),
                self._kube.scan(POD, _PODS, fields=_PLACED),
            )
        except Forbidden as error:
            _log.info("replicas are asked for without a look at the nodes: %s", error)
            return None, _AFTER_FORBIDDEN_S
        except KubeError as error:
            _log.warning("the room on the nodes is unknown: %s", error)
            return None, _KEPT_S
        return nodes_with_room(nodes.items, pods.items), _KEPT_S
