"""The RayService of a service: Ray's Serve document, and the cluster that carries it out; pure.

Fields that change often (replicas, live settings) are in `serveConfigV2`, which KubeRay hands to
the running Ray. A change below `rayClusterConfig` creates a second cluster, so nothing there
depends on the number of replicas.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import yaml

from tandem_operator.k8s import names
from tandem_operator.render.fingerprint import fingerprint, version_of
from tandem_operator.render.head_store import cleanup_annotations, gcs_fault_tolerance
from tandem_operator.render.npu import npu_profile
from tandem_operator.render.npu_profiles import NpuProfile
from tandem_operator.render.pods import environment, head_template, resources, worker_template
from tandem_operator.render.settings import OperatorSettings
from tandem_operator.render.volumes import head_storage
from tandem_serve.api.changes import ChangeClass, class_of, leaves
from tandem_serve.api.document import RAY_NPU, ServeOptions, serve_document
from tandem_serve.api.scaling import MAX_REPLICAS
from tandem_serve.api.spec import InferenceService

# In C where PyYAML has it: the other one takes two thirds of a reconcile's time.
_Dumper: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

API_VERSION: Final = "ray.io/v1"
KIND: Final = "RayService"
WORKER_GROUP: Final = "replica"

# The most that a manifest may request. It is only an upper bound: the number of replicas decides,
# and a bound that followed it would have to be changed before every growth.
_MAX_WORKERS: Final = MAX_REPLICAS
# Ray's smallest object store, with some margin: requests and answers never pass through it.
_OBJECT_STORE_BYTES: Final = 80_000_000
# A worker whose replica is gone counts as idle only when its HAProxy has drained as well, so a
# replica that comes back after a crash finds it. Longer would only hold unused cards.
_IDLE_TIMEOUT_S: Final = 10
# Until every node's kube-proxy sends new connections to the new cluster.
_OLD_CLUSTER_STAYS_S: Final = 15
# Parts of a deployment whose change makes Ray restart every replica.
_RESTARTING: Final = (
    "ray_actor_options",
    "placement_group_bundles",
    "placement_group_strategy",
)


def ray_service(
    service: InferenceService, settings: OperatorSettings, token_secret: str
) -> dict[str, Any]:
    """Return the RayService of `service`, without labels and owner, which every object has.

    `token_secret` is the Secret with Ray's token.

    Raises:
        RenderError: `service` requests something that `settings` cannot give.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": names.ray_service(service.name),
            "annotations": {
                names.SPEC: spec_annotation(service),
                **cleanup_annotations(service, settings),
            },
        },
        "spec": {
            "serveConfigV2": _serve_config(service),
            "rayClusterConfig": _ray_cluster(service, settings, token_secret),
            "serveService": _endpoint(service),
            **_head_outside_endpoint(service),
            "upgradeStrategy": {"type": "NewCluster"},
            "rayClusterDeletionDelaySeconds": _OLD_CLUSTER_STAYS_S,
        },
    }


def _head_outside_endpoint(service: InferenceService) -> dict[str, bool]:
    """Return the field that keeps the head from behind the endpoint, where it is to be kept.

    It holds no replica, and clients would take a detour through it. But where there is no other pod
    it is the one that answers, and tells clients when to come again.
    """
    # KubeRay leaves a false one out when it writes the object back.
    return {} if service.spec.scaling.allows_zero else {"excludeHeadPodFromServeSvc": True}


def spec_annotation(service: InferenceService) -> str:
    """Return the version as compact JSON, long values as hashes.

    Annotations have 256 KiB together. This one is only compared with another one.
    """
    spec = version_of(service.resolved()["spec"])
    return json.dumps(spec, separators=(",", ":"), sort_keys=True)


def _serve_config(service: InferenceService) -> str:
    # KubeRay hands the document to Ray whenever its text differs, so equal means equal text.
    document = _serve_document(service)
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=True, allow_unicode=True))


def _serve_document(service: InferenceService) -> dict[str, Any]:
    return serve_document(service, ServeOptions(port=names.SERVE_PORT))


def _ray_cluster(
    service: InferenceService, settings: OperatorSettings, token_secret: str
) -> dict[str, Any]:
    profile = npu_profile(service, settings)
    head = head_template(service, settings, profile, token_secret=token_secret)
    worker = worker_template(service, settings, profile)
    cluster = {
        "rayVersion": settings.replica.ray_version,
        "authOptions": {"mode": "token", "secretName": token_secret},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": _autoscaler(service, settings),
        "headGroupSpec": {"rayStartParams": _head_start(), "template": head},
        "workerGroupSpecs": [_worker_group(service, profile, worker)],
        **gcs_fault_tolerance(service, settings),
    }
    revision = _revision(service, cluster)
    for template in (head, worker):
        annotations = template["metadata"].get("annotations", {})
        template["metadata"]["annotations"] = {**annotations, names.REVISION: revision}
    return cluster


def _revision(service: InferenceService, cluster: Mapping[str, Any]) -> str:
    """Return the hash of everything whose change needs new pods.

    KubeRay compares clusters itself, but ignores tolerations, and does not see fields that reach
    the replicas through the Serve document alone, such as dtype: Ray would stop the old replicas
    before it knows that the new ones start.
    """
    fields = {
        path: value
        for path, value in leaves(service.resolved()["spec"], "spec")
        if class_of(path) is ChangeClass.REPLACE
    }
    return fingerprint({"fields": fields, "cluster": cluster, "replica": _restarting(service)})


def _restarting(service: InferenceService) -> dict[str, Any]:
    """Return the part of the Serve document whose change makes Ray restart every replica."""
    application = _serve_document(service)["applications"][0]
    (deployment,) = application["deployments"]
    return {
        "import_path": application["import_path"],
        "args": application["args"],
        **{name: deployment[name] for name in _RESTARTING if name in deployment},
    }


def _head_start() -> dict[str, str]:
    return {
        **_common_start(),
        "dashboard-host": "0.0.0.0",  # noqa: S104  # the pod's; a NetworkPolicy and a token guard it
        # No replica ever lives on the head.
        "num-cpus": "0",
    }


def _worker_group(
    service: InferenceService, profile: NpuProfile | None, template: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the worker group: one replica per worker, with exactly its resources."""
    requested = service.spec.resources
    start = {
        **_common_start(),
        "num-cpus": str(requested.cpu),
        "memory": str(requested.memory_bytes),
    }
    if profile is not None:
        # In quotes for KubeRay's shell, and once more for the JSON inside.
        cards = json.dumps({RAY_NPU: requested.npu}).replace('"', '\\"')
        start["resources"] = f'"{cards}"'
    return {
        "groupName": WORKER_GROUP,
        "replicas": 0,
        "minReplicas": 0,
        "maxReplicas": _MAX_WORKERS,
        "rayStartParams": start,
        "template": template,
    }


def _common_start() -> dict[str, str]:
    return {
        "object-store-memory": str(_OBJECT_STORE_BYTES),
        # It would send every worker's log lines to drivers, of which there are none.
        # "false" would not arrive: KubeRay leaves options with that value out of its command.
        "include-log-monitor": "0",
    }


def _autoscaler(service: InferenceService, settings: OperatorSettings) -> dict[str, Any]:
    """Return the options of Ray's autoscaler: it adds a worker for a replica without resources."""
    replica, runtime = settings.replica, service.spec.runtime
    options: dict[str, Any] = {
        "version": "v2",
        "idleTimeoutSeconds": _IDLE_TIMEOUT_S,
        "imagePullPolicy": runtime.image_pull_policy or replica.image_pull_policy,
        "resources": resources(settings, replica.autoscaler_resources),
        "env": environment(service, settings, ()),
        "volumeMounts": list(head_storage(settings).mounts),
    }
    if replica.security_context:
        options["securityContext"] = replica.security_context
    return options


def _endpoint(service: InferenceService) -> dict[str, Any]:
    """Return the Service that clients call; KubeRay sets its selector, to the newest cluster.

    It writes the other fields only then: a change here waits for the next replacement.
    """
    return {
        "metadata": {
            "name": names.endpoint_service(service.name),
            "labels": names.object_labels(service.name),
        },
        "spec": {
            "type": "ClusterIP",
            "ports": [
                {
                    # KubeRay looks for the port of this name.
                    "name": "serve",
                    "port": names.SERVE_PORT,
                    "targetPort": names.SERVE_PORT,
                    "protocol": "TCP",
                    "appProtocol": "http",
                }
            ],
        },
    }
