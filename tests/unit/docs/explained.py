"""The services of the docs' examples of `tandem explain` and `tandem get`, explained by the code.

The status is the operator's own, made of pods, Ray's answer and problems as in its own tests.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tandem_operator import reasons
from tandem_operator.commands.explain import LABELS
from tandem_operator.commands.explanation import explain
from tandem_operator.commands.replica_lines import (
    DEVICE,
    MEMORY,
    MICRO_BATCHES,
    device_line,
    memory_lines,
    micro_batch_line,
)
from tandem_operator.micro_batches.document import micro_batch_document
from tandem_operator.micro_batches.figures import Figures
from tandem_operator.ranks.document import ranks_document
from tandem_operator.replica_pages.device import device_document
from tandem_operator.status.document import status_document
from tandem_operator.status.facts import Problem
from tandem_operator.status.pending_change import PendingChange
from tandem_serve.api.spec import InferenceService
from tests.unit.docs.messages import filled
from tests.unit.operator import samples

NOW: Final = "2026-11-21T14:00:00Z"
A_WHILE_AGO: Final = "2026-11-21T13:59:35Z"
TWO_MINUTES_AGO: Final = "2026-11-21T13:57:50Z"
FIVE_MINUTES_AGO: Final = "2026-11-21T13:55:00Z"
TEN_MINUTES_AGO: Final = "2026-11-21T13:50:00Z"
APPLY: Final = "kubectl-client-side-apply"
SERVING: Final = {
    "metadata": {
        "name": "tiny",
        "namespace": "default",
        "creationTimestamp": "2026-11-21T10:40:00Z",
    },
    "status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "replicas": {"summary": "2/2"},
        "model": "tandem-tiny",
        "url": "http://tiny.default.svc:8000",
        "reason": reasons.SERVING,
    },
}
"""The service of the table of `tandem get`."""

Object = dict[str, Any]


def unschedulable() -> str:
    """Explain a service whose replica finds no node."""
    cluster, worker = "mine-7k2xq", "mine-7k2xq-replica-worker-x2f5p"
    message = "0/3 nodes are available: 3 Insufficient memory."
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    pods = [
        samples.pod(f"{cluster}-head", cluster, head=True),
        samples.pod(
            worker,
            cluster,
            ready=False,
            phase="Pending",
            conditions=[scheduled | {"message": message}],
        ),
    ]
    view = samples.view(samples.ray_service(pending=samples.digest(cluster)), *pods)
    return _explained(
        _service("mine", "models"), pods=pods, since=FIVE_MINUTES_AGO, facts={"ray": view}
    )


def without_claim() -> str:
    """Explain a service whose claim is missing."""
    text = filled(
        "…: namespace '…' has no PersistentVolumeClaim '…'; create it, or name another source",
        "spec.model.source",
        "models",
        "weights",
    )
    facts = {"ray": None, "problems": (Problem(reasons.CLAIM_MISSING, text),)}
    return _explained(_service("mine", "models"), pods=[], since=TEN_MINUTES_AGO, facts=facts)


def cut_off() -> str:
    """Explain a service whose new version has a damaged checkpoint, while the old one serves."""
    cause = filled(
        "… is cut off: the tensor … ends at byte …, the file at …",
        "/models/next/model.safetensors",
        "model.norm.weight",
        "3251312",
        "1625656",
    )
    old, new = "tiny-7k2xq", "tiny-m9d4c"
    worker = f"{new}-replica-worker-x2f5p"
    created = {"creationTimestamp": TWO_MINUTES_AGO}
    pods = [
        samples.pod(f"{old}-head", old, head=True),
        samples.pod(f"{old}-replica-worker-b7c9d", old),
        samples.pod(f"{new}-head", new, head=True),
        samples.pod(worker, new, ready=False),
    ]
    pods[-1]["metadata"] |= created
    found = samples.ray_service(
        active=samples.digest(old, "RUNNING"), pending=samples.digest(new), endpoints=1
    )
    failing = samples.answer(
        "STARTING",
        status="DEPLOYING",
        message=samples.TRACEBACK.replace(samples.CAUSE, cause),
    )
    view = samples.view(found, *pods, **{old: samples.answer("RUNNING"), new: failing})
    change = PendingChange.read({"class": "Replace", "fields": ["spec.model.source"]})
    service = _service("tiny", "default", model="tandem-tiny")
    facts = {"ray": view, "change": change}
    return _explained(service, pods=pods, since=TWO_MINUTES_AGO, facts=facts, ray_service=found)


def halves() -> str:
    """Explain the micro-batches of a service whose two replicas cut steps with prefill."""
    figures = Figures(
        cuts_prefill=True, cuts_decode=False, overlap=0.87, cost=40, num_kv_blocks=800
    )
    found = {
        "spec": {"engine": {"streamOptions": {"microBatch": True}}},
        "status": {"microBatch": micro_batch_document([figures, figures], 2, A_WHILE_AGO)},
    }
    return f"{MICRO_BATCHES}: {micro_batch_line(found, NOW)}"


def device() -> str:
    """Explain what the replicas of a service compute on."""
    facts = {"type": "cpu", "name": "AMD EPYC", "software": "avx2 kernels", "memoryBytes": 4 << 30}
    found = {"status": {"device": device_document([facts], A_WHILE_AGO)}}
    return f"{DEVICE}: {device_line(found, NOW)}"


def memory() -> str:
    """Explain the memory of a service whose replicas have four ranks, of which rank 0 samples."""
    first, other = (
        {"weights": 1.1, "step": step, "kv_cache": 1024.0, "process": process}
        for step, process in ((21.4, 489.0), (20.9, 471.0))
    )
    replica = {
        rank: {part: round(size * 2**20) for part, size in parts.items()}
        for rank, parts in enumerate((first, other, other, other))
    }
    return _memory({"status": {"ranks": ranks_document([replica], A_WHILE_AGO)}})


def unread_memory() -> str:
    """Explain the memory of such a service before one of its replicas has been read."""
    engine = {"parallelism": {"worldSize": 4, "pp": 2}}
    return _memory({"spec": {"engine": engine, "resources": {"memory": "6Gi"}}})


def _memory(service: Mapping[str, Any]) -> str:
    return "\n".join(f"{MEMORY}: {line}" for line in memory_lines(dict(service), NOW))


def _service(name: str, namespace: str, *, model: str | None = None) -> InferenceService:
    return InferenceService.model_validate(
        {
            "apiVersion": "serving.tandem.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"model": {"name": model, "source": "pvc://weights/next"}},
        }
    )


def _explained(
    service: InferenceService,
    *,
    pods: Sequence[Object],
    since: str,
    facts: Mapping[str, Any],
    ray_service: Object | None = None,
) -> str:
    """Return the five lines about a service whose status the operator wrote at `since`."""
    name, namespace = service.name, str(service.metadata.namespace)
    status = status_document(
        samples.facts(name=name, namespace=namespace, service=service, now=since, **facts)
    )
    writes = [{"manager": APPLY, "time": since, "fieldsV1": {"f:spec": {}}}]
    metadata = {"name": name, "namespace": namespace, "creationTimestamp": since, "generation": 1}
    found = {
        "metadata": metadata | {"managedFields": writes},
        "spec": {"model": {"source": service.spec.model.source}},
        "status": status,
    }
    lines = explain(found, ray_service, [_labelled(pod) for pod in pods], [], NOW)
    return "\n".join(f"{label}: {line}" for label, line in zip(LABELS, lines, strict=True))


def _labelled(pod: Object) -> Object:
    """Return a pod with the component that the operator's templates name."""
    labels = pod["metadata"]["labels"]
    component = "head" if labels["ray.io/node-type"] == "head" else "worker"
    metadata = pod["metadata"] | {"labels": labels | {"app.kubernetes.io/component": component}}
    return pod | {"metadata": metadata}
