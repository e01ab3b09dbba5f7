"""Faults that have happened when the call returns, and what is whole again afterwards.

A pod that was deleted by force is gone from the API server at once, while its processes still
answer on the node; a test that looks too early sees the old ones and measures nothing.
"""

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tests.e2e.harness import wait_for
from tests.e2e.kubernetes.harness import DeployedService
from tools.cluster import Cluster

DASHBOARD_PORT = 8265
# Prints the status of an answer and then its body; POSTs when there is a body to send.
ASK = """
import sys, urllib.error, urllib.request
url, token, body = sys.argv[1:]
request = urllib.request.Request(url, data=body.encode() or None)
if token:
    request.add_header("Authorization", f"Bearer {token}")
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    answer = opener.open(request, timeout=20)
except urllib.error.HTTPError as error:
    answer = error
except OSError:
    sys.exit(1)
print(answer.status)
print(answer.read().decode(errors="replace"))
"""


@dataclass(frozen=True)
class Answer:
    """Answer to a program on the node."""

    status: int
    """0: there was no answer."""
    text: str


def ask_on_the_node(cluster: Cluster, url: str, *, token: str = "", body: str = "") -> Answer:
    """Ask as a program on the node, which every NetworkPolicy lets in."""
    done = cluster.run([sys.executable, "-c", ASK, url, token, body])
    if done.returncode != 0:
        return Answer(0, done.stderr)
    status, _, text = done.stdout.partition("\n")
    return Answer(int(status), text)


def processes_of(cluster: Cluster, pod_uids: Collection[str]) -> list[str]:
    """Processes of these pods on the node, by the files that name their cgroups."""
    pattern = "|".join(f"pod{uid}" for uid in pod_uids)
    script = f"grep -lE '{pattern}' /proc/[0-9]*/cgroup"
    return cluster.run(["sh", "-c", script]).stdout.split()


def replicas_in(cluster: Cluster, pods: Sequence[dict[str, Any]]) -> set[str]:
    """The ids, on the node, of the processes that are replicas in these pods."""
    uids = [pod["metadata"]["uid"] for pod in pods]
    ids = [path.split("/")[2] for path in processes_of(cluster, uids)]
    script = 'for id; do grep -qa ServeReplica "/proc/$id/cmdline" && echo "$id"; done'
    return {*cluster.run(["sh", "-c", script, "sh", *ids]).stdout.split()}


def stop_replica(cluster: Cluster, pod: dict[str, Any]) -> None:
    """SIGSTOP for the replica in a pod: it hangs, while Ray and HAProxy run on."""
    done = cluster.run(["kill", "-STOP", *replicas_in(cluster, [pod])])
    assert done.returncode == 0, f"no replica was there to stop: {done.stderr}"


def kill_pods(
    service: DeployedService, cluster: Cluster, pods: Sequence[dict[str, Any]]
) -> set[str]:
    """Delete pods by force, wait until no process of theirs is left.

    Returns:
        Their uids.
    """
    lost = {pod["metadata"]["uid"] for pod in pods}
    assert processes_of(cluster, lost), "none of the pods runs, so none can be killed"
    service.kubernetes.kubectl("delete", "pod", "--force", "--grace-period=0", *names(pods))
    wait_for(lambda: not processes_of(cluster, lost), "the processes of the pods have ended")
    return lost


def stop_processes(cluster: Cluster, name: str) -> None:
    """SIGSTOP for all processes of this name on the node: they hang."""
    done = cluster.run(["pkill", "-STOP", name])
    assert done.returncode == 0, f"no process {name} was there to stop"


def is_whole(service: DeployedService, cluster: Cluster, lost: Collection[str]) -> bool:
    """Return True when other pods have replaced the lost ones, all are ready, and Ray agrees.

    Without Ray's word a worker that has not noticed yet that its head is gone would do.
    """
    heads, workers = service.serving_pods("head"), service.serving_pods()
    pods = [*heads, *workers]
    return (
        not {pod["metadata"]["uid"] for pod in pods} & set(lost)
        and len(heads) == 1
        and len(workers) == service.found["status"]["replicas"]["desired"]
        and all(is_pod_ready(pod) for pod in pods)
        and runs_in_ray(service, cluster)
        and service.is_ready()
    )


def is_pod_ready(pod: dict[str, Any]) -> bool:
    """Return True when a pod stays and all of its containers are ready."""
    conditions = pod["status"].get("conditions", [])
    ready = any(
        condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions
    )
    return ready and "deletionTimestamp" not in pod["metadata"]


def runs_in_ray(service: DeployedService, cluster: Cluster) -> bool:
    """Return True when the head, asked by the node, answers that the application runs."""
    url = f"http://{head_address(service)}:{DASHBOARD_PORT}/api/serve/applications/"
    answer = ask_on_the_node(cluster, url, token=service.ray_token())
    if answer.status != 200:
        return False
    application = json.loads(answer.text)["applications"].get(service.name, {})
    return bool(application.get("status") == "RUNNING")


def head_address(service: DeployedService) -> str:
    """The address of the head's pod; empty while it has none."""
    return str(service.serving_pods("head")[0]["status"].get("podIP", ""))


def names(pods: Sequence[dict[str, Any]]) -> list[str]:
    """The names of pods."""
    return [pod["metadata"]["name"] for pod in pods]
