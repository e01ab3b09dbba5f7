"""The state in Kubernetes of the RayCluster whose head this pod is.

The head has the account of Ray's autoscaler, which may read just that: the RayCluster and its pods.
The account goes with the RayCluster.
"""

import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TIMEOUT_S: Final = 5.0
# Kubernetes' answers when there is no such RayCluster, or no such account any more.
_GONE: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


class ClusterDeleted(Exception):
    """The RayCluster is being deleted, or is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRayCluster:
    """The RayCluster that this pod belongs to."""

    api: str
    """URL of the Kubernetes API."""

    namespace: str
    name: str
    token: str = field(repr=False)
    authority: Path | None
    """The certificates by which the API is known; None: those of the system."""

    @classmethod
    def of_this_pod(cls, account: Path = _ACCOUNT) -> Self | None:
        """The RayCluster of this pod; None: it belongs to none, or has no account."""
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{what}") for what in ("HOST", "PORT"))
        name = os.environ.get("RAY_CLUSTER_NAME")
        if not (host and port and name):
            return None
        try:
            namespace = (account / "namespace").read_text(encoding="ascii").strip()
            token = (account / "token").read_text(encoding="ascii").strip()
        except OSError:
            return None
        host = f"[{host}]" if ":" in host else host
        return cls(
            api=f"https://{host}:{port}",
            namespace=namespace,
            name=name,
            token=token,
            authority=account / "ca.crt",
        )

    def leaving_workers(self) -> set[str]:
        """The addresses of the worker pods that are being deleted, while the RayCluster stays.

        Raises:
            ClusterDeleted: the RayCluster does not stay.
            OSError, ValueError: Kubernetes does not say.
        """
        cluster = self._get(f"/apis/ray.io/v1/namespaces/{self.namespace}/rayclusters/{self.name}")
        if cluster["metadata"].get("deletionTimestamp"):
            raise ClusterDeleted
        selector = f"ray.io/cluster={self.name},ray.io/node-type=worker"
        query = urllib.parse.urlencode({"labelSelector": selector})
        pods = self._get(f"/api/v1/namespaces/{self.namespace}/pods?{query}")["items"]
        leaving = [pod for pod in pods if pod["metadata"].get("deletionTimestamp")]
        return {pod.get("status", {}).get("podIP", "") for pod in leaving}

    def _get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.api}{path}")  # noqa: S310  # ours, not a caller's
        request.add_header("Authorization", f"Bearer {self.token}")
        # The environment's proxies have no part in it.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self.authority is not None:
            context = ssl.create_default_context(cafile=str(self.authority))
            handlers.append(urllib.request.HTTPSHandler(context=context))
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in _GONE:
                raise ClusterDeleted from None
            raise
