"""The built-in kinds of NPU node: their names in Kubernetes.

Each set-up names its cards and nodes in its own way, so this is data; the operator's settings add
profiles, or replace one by its name. Sources: Ascend's device plug-in and MindCluster
(huawei.com/Ascend910, accelerator-type), Huawei Cloud's CCE (huawei.com/ascend-1980).

The Ascend device plug-in gives a container its devices and, with Ascend Docker Runtime, mounts the
driver. Where that runtime is missing, a profile mounts the driver's folders itself.
"""

from typing import Annotated, Any, Final

from pydantic import Field

from tandem_engine.api.model import Model
from tandem_serve.api.pods import EnvVar, Toleration

# Boards with Kunpeng CPUs need an image for arm64. Unlike host-arch, which only MindCluster's nodes
# have, this label is on every node, so that it also selects nodes for the Ray head.
_ARM: Final = {"kubernetes.io/arch": "arm64"}


class NpuProfile(Model):
    """One kind of NPU node."""

    resource_name: Annotated[str, Field(min_length=1)]
    """Kubernetes' name of a card, such as huawei.com/Ascend910."""

    cards: Annotated[int, Field(ge=1, le=64)]
    """Cards of one node: no replica can have more."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels of such nodes."""

    env: list[EnvVar] = Field(default_factory=list)
    """Further variables of the replicas' environment there."""

    volumes: list[dict[str, Any]] = Field(default_factory=list)
    """Further volumes of the worker pods there, as in a pod."""

    volume_mounts: list[dict[str, Any]] = Field(default_factory=list)
    """Mounts of those volumes in the replicas, as in a container."""

    tolerations: list[Toleration] = Field(default_factory=list)
    """Taints of such nodes."""

    scheduler_name: str | None = None
    """Scheduler of the worker pods there; absent means Kubernetes' own."""


BUILT_IN: Final[dict[str, NpuProfile]] = {
    "atlas-800i-a2": NpuProfile(
        resource_name="huawei.com/Ascend910",
        cards=8,
        node_selector={"accelerator-type": "module-910b-8", **_ARM},
    ),
    "atlas-800i-a3": NpuProfile(
        resource_name="huawei.com/Ascend910",
        cards=16,
        node_selector={"accelerator-type": "module-a3-16", **_ARM},
    ),
    "atlas-300i-duo": NpuProfile(
        resource_name="huawei.com/Ascend310P",
        # Up to four boards of two chips; the plug-in counts chips.
        cards=8,
        node_selector={"accelerator-type": "card-300i-duo"},
    ),
    "cce-ascend-1980": NpuProfile(
        resource_name="huawei.com/ascend-1980",
        # CCE labels its nodes by flavour; the resource's name alone says where the cards are.
        cards=16,
        node_selector=dict(_ARM),
    ),
}
