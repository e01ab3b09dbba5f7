"""A cluster is a real Kubernetes: pods, names, services, and what its caller can reach."""

import socket
from pathlib import Path

import httpx
import pytest

from tests.cluster_fixture import MODEL_ON_THE_NODE
from tests.integration.cluster import pods
from tests.integration.cluster.footprint import wait_for
from tools.cluster import Cluster, ClusterError
from tools.cluster.addresses import Slice

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

RESOLVE = "import socket; print(socket.gethostbyname('kubernetes.default'))"
TRY_TO_CONNECT = """
import socket
try:
    socket.create_connection(({host!r}, {port}), timeout=20)
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def test_the_node_is_ready(cluster: Cluster) -> None:
    conditions = cluster.kubectl(
        "get", "node", "--output=jsonpath={.items[*].status.conditions[?(@.type=='Ready')].status}"
    )

    assert conditions == "True"
    assert all(part.state == "running" for part in cluster.parts().values())


def test_a_pod_knows_kubernetes_by_name(cluster: Cluster) -> None:
    assert pods.run(cluster, "resolve", RESOLVE).strip() == str(cluster.addresses.api_service)


def test_a_name_outside_the_cluster_does_not_exist_and_that_is_said(cluster: Cluster) -> None:
    program = """
import socket
try:
    socket.gethostbyname("example.com")
except socket.gaierror as error:
    print(error.errno == socket.EAI_NONAME)
"""

    assert pods.run(cluster, "outside", program).strip() == "True"


def test_the_caller_reaches_a_service_by_its_address(cluster: Cluster) -> None:
    address = pods.serve(cluster, "web")

    wait_for(lambda: answers(f"http://{address}/"), "the service answers its caller")


def test_a_pod_reaches_a_service_by_its_name(cluster: Cluster) -> None:
    pods.serve(cluster, "named")
    # The pod is ready a moment before kube-proxy knows it.
    program = """
import time, urllib.request
deadline = time.monotonic() + 60
while True:
    try:
        print(urllib.request.urlopen("http://named/", timeout=20).status)
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.1)
"""

    assert pods.run(cluster, "client", program).strip() == "200"


def test_a_pod_cannot_connect_to_the_machine_that_it_runs_on(cluster: Cluster) -> None:
    with socket.create_server((str(cluster.addresses.caller), 0)) as server:
        host, port = server.getsockname()

        said = pods.run(cluster, "escape", TRY_TO_CONNECT.format(host=host, port=port))

    assert said.strip() == "ConnectionRefusedError"


def test_the_node_listens_to_no_other_address_of_this_machine(cluster: Cluster) -> None:
    other = _address_of_another_interface(cluster.addresses)

    with pytest.raises(TimeoutError):
        socket.create_connection((str(cluster.addresses.node), 6443), 1.0, (other, 0))


def _address_of_another_interface(addresses: Slice) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no other network")
        address: str = probe.getsockname()[0]
    assert address != str(addresses.caller)
    return address


def test_a_folder_of_the_caller_is_on_the_node_and_cannot_be_written(cluster: Cluster) -> None:
    assert "config.json" in cluster.run(["ls", MODEL_ON_THE_NODE]).stdout
    assert cluster.run(["touch", f"{MODEL_ON_THE_NODE}/x"]).returncode != 0


def test_what_the_node_writes_the_host_does_not_see(cluster: Cluster) -> None:
    for folder in ("/etc", "/usr", "/var"):
        assert cluster.run(["touch", f"{folder}/written-on-the-node"]).returncode == 0
        assert not Path(folder, "written-on-the-node").exists()


def test_a_change_of_the_checkout_is_on_the_node_at_once(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    for text in ("old", "new"):
        draft = tmp_path / "draft"
        draft.write_text(text)
        draft.replace(file)  # as editors do

        assert cluster.run(["cat", str(file)]).stdout == text


def test_the_kubeconfig_is_for_its_owner_alone(cluster: Cluster) -> None:
    assert cluster.kubeconfig.stat().st_mode & 0o777 == 0o600


def test_a_part_can_hang_and_go_on(cluster: Cluster) -> None:
    cluster.pause("kube-apiserver")
    try:
        with pytest.raises(ClusterError, match=r"(?i)timeout|deadline exceeded"):
            cluster.kubectl("get", "nodes", "--request-timeout=1s")
    finally:
        cluster.resume("kube-apiserver")

    wait_for(lambda: "node0" in cluster.kubectl("get", "nodes"), "the API server answers again")


def test_a_part_can_be_killed_and_started_again(cluster: Cluster) -> None:
    cluster.kill("kube-scheduler")
    assert cluster.parts()["kube-scheduler"].state == "exited with signal SIGKILL"

    cluster.start_part("kube-scheduler")

    assert cluster.parts()["kube-scheduler"].runs
    assert pods.run(cluster, "scheduled", "print('yes')").strip() == "yes"


def test_a_part_that_is_not_there_is_named_with_those_that_are(cluster: Cluster) -> None:
    with pytest.raises(ClusterError, match="there is no part kubelt; the parts are etcd, "):
        cluster.pause("kubelt")


def test_the_memory_of_the_parts_is_known(cluster: Cluster) -> None:
    assert cluster.memory() > 100 * 2**20
