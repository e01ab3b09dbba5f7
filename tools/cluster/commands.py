"""The parts that run on the node, and their command lines: pure functions of addresses."""

from pathlib import Path
from typing import Final

from tools.cluster.addresses import Slice
from tools.cluster.config import API_PORT, CONTAINERD_SOCKET, Account
from tools.cluster.network import POLICIES_QUEUE
from tools.cluster.state import Files

ETCD: Final = "etcd"
API_SERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
SCHEDULER: Final = "kube-scheduler"
CONTAINERD: Final = "containerd"
KUBELET: Final = "kubelet"
PROXY: Final = "kube-proxy"
DNS: Final = "coredns"
POLICIES: Final = "network-policies"

ADMIN: Final = "admin"
AGGREGATOR: Final = "aggregator"
ETCD_PORT: Final = 2379
PROXY_HEALTH_PORT: Final = 10256
POLICIES_PORT: Final = 9080
DNS_PORT: Final = 53


def accounts(node: str) -> dict[str, Account]:
    """Users of the API server, by the name of the kubeconfig."""
    masters = ("system:masters",)
    return {
        ADMIN: Account("tandem:admin", masters),
        API_SERVER: Account("tandem:apiserver", masters),
        CONTROLLER_MANAGER: Account("system:kube-controller-manager"),
        SCHEDULER: Account("system:kube-scheduler"),
        KUBELET: Account(f"system:node:{node}", ("system:nodes",)),
        PROXY: Account("system:kube-proxy"),
        DNS: Account("tandem:dns", masters),
        POLICIES: Account("tandem:policies", masters),
    }


def command_lines(files: Files, addresses: Slice, node: str) -> dict[str, list[str]]:
    """The command of every part."""
    config, pki = files.config, files.pki
    return {
        ETCD: _etcd(files.data / "etcd"),
        API_SERVER: _api_server(pki, addresses),
        CONTROLLER_MANAGER: _controller_manager(config, pki),
        SCHEDULER: [
            SCHEDULER,
            f"--kubeconfig={config / SCHEDULER}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ],
        CONTAINERD: [CONTAINERD, f"--config={config / 'containerd.toml'}"],
        KUBELET: [
            KUBELET,
            f"--config={config / 'kubelet.json'}",
            f"--kubeconfig={config / KUBELET}",
            f"--hostname-override={node}",
            f"--node-ip={addresses.node}",
        ],
        PROXY: _proxy(config, addresses, node),
        DNS: [DNS, f"-conf={config / 'Corefile'}"],
        POLICIES: [
            POLICIES,
            f"-kubeconfig={config / POLICIES}",
            f"-node={node}",
            f"-queue={POLICIES_QUEUE}",
            f"-health=127.0.0.1:{POLICIES_PORT}",
        ],
    }


def import_image(archive: str) -> list[str]:
    """Give an image to containerd, for Kubernetes to use."""
    return ["ctr", f"--address={CONTAINERD_SOCKET}", "-n=k8s.io", "images", "import", archive]


def _etcd(data: Path) -> list[str]:
    return [
        ETCD,
        f"--data-dir={data}",
        # Nothing here outlives the power.
        "--unsafe-no-fsync",
        f"--listen-client-urls=http://127.0.0.1:{ETCD_PORT}",
        f"--advertise-client-urls=http://127.0.0.1:{ETCD_PORT}",
        "--log-level=warn",
    ]


def _api_server(pki: Path, addresses: Slice) -> list[str]:
    return [
        API_SERVER,
        f"--etcd-servers=http://127.0.0.1:{ETCD_PORT}",
        f"--bind-address={addresses.node}",
        f"--advertise-address={addresses.node}",
        f"--secure-port={API_PORT}",
        f"--tls-cert-file={pki / 'serving.crt'}",
        f"--tls-private-key-file={pki / 'serving.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        "--anonymous-auth=false",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged",
        f"--service-account-key-file={pki / 'accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-cluster-ip-range={addresses.services}",
        # Else `kubectl logs` looks the node's name up.
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={pki / API_SERVER}.crt",
        f"--kubelet-client-key={pki / API_SERVER}.key",
        *_aggregation(pki),
    ]


def _aggregation(pki: Path) -> list[str]:
    """Let other API servers, such as one for external metrics, trust what this one hands on."""
    return [
        f"--requestheader-client-ca-file={pki / AGGREGATOR}-ca.crt",
        f"--requestheader-allowed-names={AGGREGATOR}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={pki / AGGREGATOR}.crt",
        f"--proxy-client-key-file={pki / AGGREGATOR}.key",
    ]


def _controller_manager(config: Path, pki: Path) -> list[str]:
    return [
        CONTROLLER_MANAGER,
        f"--kubeconfig={config / CONTROLLER_MANAGER}",
        f"--service-account-private-key-file={pki / 'accounts.key'}",
        f"--root-ca-file={pki / 'ca.crt'}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        # Dozens of controllers start at once; at the usual rate that takes five seconds.
        "--kube-api-qps=200",
        "--kube-api-burst=400",
    ]


def _proxy(config: Path, addresses: Slice, node: str) -> list[str]:
    return [
        PROXY,
        f"--kubeconfig={config / PROXY}",
        f"--hostname-override={node}",
        "--proxy-mode=iptables",
        f"--cluster-cidr={addresses.pods}",
        # Settings of the whole kernel, which a sandbox may not write.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ]
