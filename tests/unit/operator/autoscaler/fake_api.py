"""A fake API server with InferenceServices, whose status is written under optimistic locking."""

import copy
import json
from typing import Any

from aiohttp import web

from tandem_operator.clock import from_unix_s
from tandem_operator.k8s.cache import ObjectCache
from tandem_operator.k8s.kinds import INFERENCE_SERVICE, POD, RAY_SERVICE
from tandem_operator.k8s.names import COMPONENT, SERVICE, WORKER
from tandem_operator.k8s.owners import owner_reference

NAMESPACE = "demo"
_PATH = "/apis/serving.tandem.dev/v1alpha1/namespaces/demo/inferenceservices/{name}"


def service(name: str = "tiny", **scaling: Any) -> dict[str, Any]:
    """Return an InferenceService with targets."""
    return {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "resourceVersion": "1",
            "generation": 1, "creationTimestamp": "2025-11-21T10:00:00Z",
        },
        "spec": {
            "model": {"source": "file:///models/tandem-tiny"},
            "slo": {"ttft": {"target": "1500ms"}, "tpot": {"target": "80ms"}},
            "scaling": {"mode": "Auto", "maxReplicas": 8, **scaling},
        },
    }  # fmt: skip


def ray_cluster(name: str) -> dict[str, Any]:
    """Return the reference by which a RayCluster controls its pods."""
    return owner_reference(api_version="ray.io/v1", kind="RayCluster", name=name, uid=f"uid-{name}")


def pod(
    name: str, now_s: float, service_name: str = "tiny", *, ready: bool = True, **fields: Any
) -> dict[str, Any]:
    """Return the pod of a replica that was made 100 s ago and answers since 60 s."""
    created_at = fields.get("created_at", now_s - 1000)
    ready_at = fields.get("ready_at", created_at + 40)
    conditions = [
        {"type": "Ready", "status": str(ready), "lastTransitionTime": from_unix_s(ready_at)}
    ]
    return {
        "metadata": {
            "name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "resourceVersion": "1",
            "labels": {SERVICE: service_name, COMPONENT: WORKER},
            "ownerReferences": [ray_cluster(fields.get("cluster", "cluster"))],
            "creationTimestamp": from_unix_s(created_at),
        },
        "spec": {"nodeName": fields.get("node", "n1")},
        "status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": conditions},
    }  # fmt: skip


class FakeApi:
    """Holds the objects; the cache has them, too, as watches would keep it."""

    def __init__(self) -> None:
        self.cache = ObjectCache([INFERENCE_SERVICE, POD, RAY_SERVICE])
        for kind in (INFERENCE_SERVICE, POD, RAY_SERVICE):
            self.cache.replace(kind, None, [], "1")
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.nodes: list[dict[str, Any]] = []
        self.placed: list[dict[str, Any]] = []
        self.version = 10
        self.writes: list[tuple[str, str, Any]] = []
        self.answers_nodes = True

    def put(self, item: dict[str, Any], *, is_cached: bool = True) -> None:
        """Have an InferenceService written by another; the watch may not have delivered it."""
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self.objects[item["metadata"]["name"]] = item
        if is_cached:
            self.deliver(item["metadata"]["name"])

    def deliver(self, name: str = "tiny") -> None:
        """Have the watch deliver a service."""
        self.cache.put(INFERENCE_SERVICE, copy.deepcopy(self.objects[name]))

    def has_pods(self, *pods: dict[str, Any]) -> None:
        """Have these pods, and no other."""
        self.version += 1
        for one in pods:
            one["metadata"]["resourceVersion"] = str(self.version)
        self.cache.replace(POD, None, list(pods), str(self.version))

    def status(self, name: str = "tiny") -> dict[str, Any]:
        """Return the status of a service."""
        found: dict[str, Any] = self.objects[name].get("status", {})
        return found

    def condition(self, kind: str, name: str = "tiny") -> tuple[str, str]:
        """Return status and reason of a condition."""
        for one in self.status(name).get("conditions", ()):
            if one["type"] == kind:
                return one["status"], one["reason"]
        return "", ""

    def message(self, kind: str, name: str = "tiny") -> str:
        """Return the message of a condition."""
        conditions = self.status(name).get("conditions", ())
        text: str = next(one["message"] for one in conditions if one["type"] == kind)
        return text

    def application(self) -> web.Application:
        """Return the server."""
        application = web.Application()
        application.router.add_patch(_PATH + "/status", self._status)
        application.router.add_patch(_PATH + "/scale", self._scale)
        application.router.add_post("/api/v1/namespaces/demo/events", self._event)
        application.router.add_get("/api/v1/nodes", self._nodes)
        application.router.add_get("/api/v1/pods", self._pods)
        return application

    async def _status(self, request: web.Request) -> web.Response:
        found, body = self.objects[request.match_info["name"]], json.loads(await request.text())
        self.writes.append(("status", request.query["fieldManager"], body))
        metadata = body["metadata"]
        if metadata["uid"] != found["metadata"]["uid"]:
            return _refuse(409)
        if metadata["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return _refuse(409)
        found = copy.deepcopy(found)
        found["status"] = {**found.get("status", {}), **body["status"]}
        self.put(found, is_cached=False)
        return web.json_response(found)

    async def _scale(self, request: web.Request) -> web.Response:
        found, body = self.objects[request.match_info["name"]], json.loads(await request.text())
        self.writes.append(("scale", request.query["fieldManager"], body))
        if body["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return _refuse(409)
        found = copy.deepcopy(found)
        found["spec"]["scaling"]["replicas"] = body["spec"]["replicas"]
        found["metadata"]["generation"] += 1
        self.put(found)
        return web.json_response({"kind": "Scale", "apiVersion": "autoscaling/v1",
                                  "metadata": found["metadata"], "spec": body["spec"]})  # fmt: skip

    async def _event(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.events.append(body)
        return web.json_response(body)

    async def _nodes(self, _: web.Request) -> web.Response:
        if not self.answers_nodes:
            return _refuse(403)
        return web.json_response({"items": self.nodes})

    async def _pods(self, request: web.Request) -> web.Response:
        assert request.query["resourceVersion"] == "0"
        return web.json_response({"items": self.placed})


def _refuse(code: int) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": "no"}, status=code)
