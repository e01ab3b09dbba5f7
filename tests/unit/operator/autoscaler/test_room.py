"""The room on the nodes: arithmetic, taints, labels, and the sentence about what is missing."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.autoscaler.room import (
    PlacedPod,
    Room,
    nodes_with_room,
    replica_shape,
    room_for,
)

GIB = 2**30


def node(name: str = "n1", *, ready: bool = True, **fields: Any) -> dict[str, Any]:
    allocatable = {"cpu": "8", "memory": "32Gi", "pods": "110", **fields.get("allocatable", {})}
    return {
        "metadata": {"name": name, "labels": fields.get("labels", {})},
        "spec": {
            "taints": fields.get("taints", []), "unschedulable": fields.get("unschedulable", False)
        },
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }  # fmt: skip


def pod(on: str, phase: str = "Running", **requests: str) -> PlacedPod:
    document = {
        "metadata": {"name": "left out"},
        "spec": {"nodeName": on, "containers": [{"resources": {"requests": requests}}]},
        "status": {"phase": phase},
    }
    return msgspec.convert(document, PlacedPod)


def template(**spec: Any) -> dict[str, Any]:
    requests = {"cpu": "2", "memory": "6Gi"}
    return {"spec": {"containers": [{"resources": {"requests": requests}}], **spec}}


def room(
    nodes: list[dict[str, Any]],
    pods: list[PlacedPod] | None = None,
    unplaced: int = 0,
    **spec: Any,
) -> Room:
    return room_for(replica_shape(template(**spec)), nodes_with_room(nodes, pods or []), unplaced)


def test_an_empty_node_holds_what_its_scarcest_resource_allows() -> None:
    assert room([node()]).replicas == 4
    assert room([node(allocatable={"memory": "13Gi"})]).replicas == 2
    assert room([node(allocatable={"pods": "1"})]).replicas == 1
    assert room([node("n1"), node("n2")]).replicas == 8


def test_pods_that_run_take_room_and_ended_ones_none() -> None:
    assert room([node()], [pod("n1", cpu="3")]).replicas == 2
    assert room([node()], [pod("n1", cpu="100")]).replicas == 0
    assert room([node()], [pod("n1", "Succeeded", cpu="3")]).replicas == 4
    assert room([node()], [pod("elsewhere", cpu="3")]).replicas == 4


def test_a_resource_that_a_node_lacks_is_none() -> None:
    shape = replica_shape(template())
    with_card = {**shape.requests, "huawei.com/Ascend910": shape.requests["cpu"]}
    card = room_for(type(shape)(requests=with_card), nodes_with_room([node()], []))

    assert card.replicas == 0
    assert "0 of the 2 huawei.com/Ascend910 that a replica requests" in card.message


def test_replicas_that_wait_for_a_node_take_their_room_first() -> None:
    assert room([node()], unplaced=3).replicas == 1
    assert room([node()], unplaced=9).replicas == 0
    assert "9 replicas wait for a node already" in room([node()], unplaced=9).message


@pytest.mark.parametrize(
    ("tolerations", "fits"),
    [
        ([], False),
        ([{"key": "npu", "operator": "Exists"}], True),
        ([{"key": "npu", "value": "yes", "effect": "NoSchedule"}], True),
        ([{"key": "npu", "value": "no"}], False),
        ([{"key": "npu", "value": "yes", "effect": "NoExecute"}], False),
        ([{"operator": "Exists"}], True),
    ],
)
def test_taints_keep_pods_out_that_do_not_tolerate_them(
    *, tolerations: list[dict[str, str]], fits: bool
) -> None:
    tainted = node(taints=[{"key": "npu", "value": "yes", "effect": "NoSchedule"}])

    assert (room([tainted], tolerations=tolerations).replicas > 0) == fits


def test_other_nodes_do_not_count() -> None:
    labelled = node("n2", labels={"npu": "a2"})
    nodes = [node(), labelled, node("n3", ready=False), node("n4", unschedulable=True)]

    assert room(nodes).replicas == 8
    assert room(nodes, nodeSelector={"npu": "a2"}).replicas == 4
    none = room(nodes, nodeSelector={"npu": "a3"})
    assert none.replicas == 0
    assert none.message.startswith("none of the 2 nodes has the labels")


def test_a_taint_that_only_prefers_keeps_none_out() -> None:
    assert room([node(taints=[{"key": "x", "effect": "PreferNoSchedule"}])]).replicas == 4


def test_the_message_names_what_is_missing_most_nearly() -> None:
    found = room([node()], [pod("n1", memory="28Gi")])

    assert found.replicas == 0
    assert found.message == (
        "of 1 nodes that a replica may run on, 'n1' has most room: 4.0 GiB of the 6.0 GiB memory "
        "that a replica requests"
    )


def test_init_containers_count_where_they_need_more_and_sidecars_beside() -> None:
    first = {"resources": {"requests": {"cpu": "4"}}}
    beside = {"resources": {"requests": {"cpu": "2"}}, "restartPolicy": "Always"}

    assert room([node()], initContainers=[first]).replicas == 2
    assert room([node()], initContainers=[beside]).replicas == 2


@given(
    cpus=st.lists(st.integers(0, 16), min_size=1, max_size=4),
    taken=st.integers(0, 20),
    unplaced=st.integers(0, 5),
)
def test_more_taken_never_makes_more_room(cpus: list[int], taken: int, unplaced: int) -> None:
    nodes = [node(f"n{i}", allocatable={"cpu": str(cpu)}) for i, cpu in enumerate(cpus)]
    free = room(nodes, unplaced=unplaced).replicas
    used = room(nodes, [pod("n0", cpu=str(taken))], unplaced=unplaced).replicas

    assert 0 <= used <= free
    assert free == max(sum(min(cpu // 2, 5) for cpu in cpus) - unplaced, 0)
