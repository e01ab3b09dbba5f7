"""The Go parts: which module builds which program, and the key under which the result is kept.

Pure; `build.py` does it.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

GO_VERSION: Final = (1, 26)
_RECIPE: Final = "1"
"""Part of every key: a change of how parts are built changes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A folder of `parts/` with a go.mod whose `tool` lines name what to build."""

    name: str
    programs: Mapping[str, str]
    """Go's name of each program → ours."""
    source: str = ""
    """The Go module that the programs come from; empty: our own."""
    copies: Mapping[str, str] = field(default_factory=dict)
    """Folders of `source` to keep, and their names here."""
    stamps: Sequence[str] = ()
    """Linker flags in which {version}, {major} and {minor} are those of `source`."""
    tags: Sequence[str] = ()
    """Build tags."""


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_VERSION: Final = "k8s.io/component-base/version"

KUBERAY: Final = Module(
    name="kuberay",
    programs={"ray-operator": "kuberay-operator"},
    source="github.com/ray-project/kuberay/ray-operator",
    copies={"config/crd/bases": "crds", "config/rbac": "rbac"},
)
PAUSE: Final = Module(name="pause", programs=_same("pause"))
PROMETHEUS: Final = Module(
    name="prometheus",
    programs=_same("prometheus", "promtool"),
    source="github.com/prometheus/prometheus",
    # Of the ways to discover targets only Kubernetes': the others bring every cloud's SDK along.
    tags=("remove_all_sd", "enable_kubernetes_sd"),
)
PROMETHEUS_OPERATOR: Final = Module(
    name="prometheus-operator",
    programs={
        "operator": "prometheus-operator",
        "prometheus-config-reloader": "prometheus-config-reloader",
    },
    source="github.com/prometheus-operator/prometheus-operator",
    copies={
        "example/prometheus-operator-crd": "crds",
        "example/rbac/prometheus-operator": "rbac",
    },
)
# Later versions embed a web interface that their module lacks.
ALERTMANAGER: Final = Module(
    name="alertmanager",
    programs=_same("alertmanager"),
    source="github.com/prometheus/alertmanager",
)
KEDA: Final = Module(
    name="keda",
    programs={"operator": "keda", "adapter": "keda-metrics-apiserver"},
    source="github.com/kedacore/keda/v2",
    copies={"config": "config"},
)
MODULES: Final = (
    Module(
        name="kubernetes",
        programs=_same(
            "kube-apiserver",
            "kube-controller-manager",
            "kube-proxy",
            "kube-scheduler",
            "kubectl",
            "kubelet",
        ),
        source="k8s.io/kubernetes",
        # Without them clients are told v0.0.0.
        stamps=(
            f"-X {_VERSION}.gitVersion={{version}}",
            f"-X {_VERSION}.gitMajor={{major}}",
            f"-X {_VERSION}.gitMinor={{minor}}",
        ),
    ),
    Module(name="etcd", programs={"server": "etcd"}, source="go.etcd.io/etcd/server/v3"),
    Module(name="coredns", programs=_same("coredns"), source="github.com/coredns/coredns"),
    Module(
        name="network-policies",
        programs=_same("network-policies"),
        source="sigs.k8s.io/kube-network-policies",
    ),
    Module(name="helm", programs=_same("helm"), source="helm.sh/helm/v4"),
    KUBERAY,
    PAUSE,
)
"""Parts of every cluster."""
MONITORING_MODULES: Final = (PROMETHEUS, PROMETHEUS_OPERATOR, ALERTMANAGER)
"""Parts of a cluster with monitoring."""
ALL_MODULES: Final = (*MODULES, *MONITORING_MODULES, KEDA)


def key(files: Mapping[str, bytes], go_version: str, flags: Sequence[str]) -> str:
    """A short name for everything that decides what a build yields."""
    digest = hashlib.sha256()
    for part in (_RECIPE, go_version, *flags):
        digest.update(f"{part}\n".encode())
    for name in sorted(files):
        digest.update(f"{name} {len(files[name])}\n".encode())
        digest.update(files[name])
    return digest.hexdigest()[:16]


def version_of(go_mod: str, source: str) -> str:
    """The version of `source` that a go.mod requires; empty when it requires none."""
    match = re.search(rf"^\s*(?:require )?{re.escape(source)} (v\S+)", go_mod, re.MULTILINE)
    return match[1] if match else ""


def tag_flags(module: Module) -> tuple[str, ...]:
    """The flags of `go build` for its tags."""
    return ("-tags", ",".join(module.tags)) if module.tags else ()


def linker_flags(module: Module, version: str) -> str:
    """Small programs that say which version they are."""
    major, _, rest = version.removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    stamps = [stamp.format(version=version, major=major, minor=minor) for stamp in module.stamps]
    return " ".join(["-s", "-w", *stamps])


def parse_go_version(text: str) -> tuple[int, int] | None:
    """Major and minor of what `go env GOVERSION` prints."""
    match = re.match(r"go(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None
