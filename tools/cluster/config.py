"""The configuration files of the parts, as text: pure functions of addresses and folders."""

import base64
import json
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from tools.cluster.addresses import Slice
from tools.cluster.pki import KeyPair

API_PORT: Final = 6443
CONTAINERD_SOCKET: Final = Path("/run/containerd/containerd.sock")
CNI_FOLDER: Final = Path("/run/cni")
PAUSE_IMAGE: Final = "localhost/tandem/pause:1"

LOOPBACK: Final = IPv4Address("127.0.0.1")
API_HOSTS: Final = (
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)

_CONTEXT: Final = "tandem"


@dataclass(frozen=True, slots=True)
class Account:
    """A client of the API server, as a certificate names it."""

    user: str
    groups: tuple[str, ...] = ()


def kubeconfig(server: IPv4Address, authority: bytes, client: KeyPair) -> str:
    """A kubeconfig with everything embedded (JSON, which is YAML)."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": _CONTEXT,
                    "cluster": {
                        "server": f"https://{server}:{API_PORT}",
                        "certificate-authority-data": _base64(authority),
                    },
                }
            ],
            "users": [
                {
                    "name": _CONTEXT,
                    "user": {
                        "client-certificate-data": _base64(client.certificate),
                        "client-key-data": _base64(client.key),
                    },
                }
            ],
            "contexts": [{"name": _CONTEXT, "context": {"cluster": _CONTEXT, "user": _CONTEXT}}],
            "current-context": _CONTEXT,
        },
        indent=1,
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def kubelet(addresses: Slice, authority: Path) -> dict[str, Any]:
    """KubeletConfiguration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "clusterDNS": [str(addresses.node)],
        "clusterDomain": "cluster.local",
        # How soon a changed Secret or ConfigMap is in the files of a running pod; a minute if
        # nothing is said.
        "syncFrequency": "5s",
        # Pods that say `dnsPolicy: Default` get the machine's, which is CoreDNS as well.
        "resolvConf": "/etc/resolv.conf",
        # The disk is the host's: how full it is says nothing about this cluster, and there is
        # no registry from which an image could come back.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "0%",
            "imagefs.available": "0%",
            "nodefs.inodesFree": "0%",
        },
    }


def containerd(*, snapshotter: str) -> str:
    """config.toml of containerd 1.6 and 1.7."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "{CONTAINERD_SOCKET}"

[{cri}]
  # Lowering it takes CAP_SYS_RESOURCE, which a container often does not have.
  restrict_oom_score_adj = true
  sandbox_image = "{PAUSE_IMAGE}"

  [{cri}.containerd]
    snapshotter = "{snapshotter}"

  [{cri}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{CNI_FOLDER}"
"""


def cni(addresses: Slice) -> dict[str, Any]:
    """Network of the pods: a cable each, routed by the node.

    No bridge: between two pods on one, packets pass the node's rules (services, policies) only
    where the kernel has br_netfilter loaded.
    """
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": str(addresses.pods)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": "/run/cni-addresses",
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def corefile(addresses: Slice, client: Path) -> str:
    """CoreDNS: the cluster's names; every other name does not exist, which is said at once."""
    return f"""\
cluster.local in-addr.arpa ip6.arpa {{
    bind {addresses.node}
    errors
    kubernetes {{
        kubeconfig {client}
        pods insecure
        ttl 5
    }}
}}
# A block of its own: within one, CoreDNS asks `template` before `kubernetes`.
. {{
    bind {addresses.node}
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""
