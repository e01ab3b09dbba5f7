"""The configuration of the parts, where a wrong word would cost a cluster."""

import base64
import json
import tomllib
from ipaddress import IPv4Address
from pathlib import Path

from tools.cluster import commands, config
from tools.cluster.addresses import Slice
from tools.cluster.pki import KeyPair
from tools.cluster.state import Files

THIRD = Slice(2)
FILES = Files(Path("/c/running/tiny"))


def test_a_kubeconfig_holds_everything_itself() -> None:
    text = config.kubeconfig(IPv4Address("198.18.1.1"), b"CA", KeyPair(b"KEY", b"CERT"))

    read = json.loads(text)

    cluster, user = read["clusters"][0]["cluster"], read["users"][0]["user"]
    assert cluster["server"] == "https://198.18.1.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]) == b"CA"
    assert base64.b64decode(user["client-certificate-data"]) == b"CERT"
    assert base64.b64decode(user["client-key-data"]) == b"KEY"
    assert read["current-context"] == read["contexts"][0]["name"]


def test_containerd_is_told_what_a_container_may_not_do() -> None:
    read = tomllib.loads(config.containerd(snapshotter="native"))

    interface = read["plugins"]["io.containerd.grpc.v1.cri"]
    assert interface["restrict_oom_score_adj"] is True
    assert interface["sandbox_image"] == "localhost/tandem/pause:1"
    assert interface["containerd"]["snapshotter"] == "native"


def test_the_kubelet_judges_neither_the_hosts_disk_nor_its_cgroups() -> None:
    read = config.kubelet(THIRD, Path("/ca.crt"))

    assert read["clusterDNS"] == ["198.18.5.1"]
    assert read["failCgroupV1"] is False
    assert read["imageGCHighThresholdPercent"] == 100
    assert read["evictionHard"]["nodefs.available"] == "0%"


def test_a_changed_secret_is_in_its_pod_within_seconds() -> None:
    assert config.kubelet(THIRD, Path("/ca.crt"))["syncFrequency"] == "5s"


def test_pods_get_addresses_of_the_slice_and_a_route_to_everything() -> None:
    plugin = config.cni(THIRD)["plugins"][0]

    assert plugin["ipam"]["ranges"] == [[{"subnet": "198.18.4.0/24"}]]
    assert plugin["ipam"]["routes"] == [{"dst": "0.0.0.0/0"}]


def test_names_outside_the_cluster_are_answered_in_a_block_of_their_own() -> None:
    inside, _, outside = config.corefile(THIRD, Path("/dns")).partition("\n. {")

    assert "kubernetes" in inside
    assert "template ANY" not in inside
    assert "NXDOMAIN" in outside


def test_every_part_that_talks_to_the_api_has_an_account_of_its_name() -> None:
    lines = commands.command_lines(FILES, THIRD, "node0")
    alone = {commands.ETCD, commands.CONTAINERD}

    assert set(commands.accounts("node0")) == {commands.ADMIN, *lines} - alone


def test_the_kubelet_is_the_node_that_its_certificate_names() -> None:
    assert commands.accounts("node0")[commands.KUBELET].user == "system:node:node0"
    assert "--hostname-override=node0" in commands.command_lines(FILES, THIRD, "node0")["kubelet"]


def test_the_api_server_listens_on_the_node_alone() -> None:
    line = commands.command_lines(FILES, THIRD, "node0")["kube-apiserver"]

    assert "--bind-address=198.18.5.1" in line
    assert "--service-cluster-ip-range=198.19.2.0/24" in line
    assert "--anonymous-auth=false" in line
