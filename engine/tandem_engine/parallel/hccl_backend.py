"""The process groups of torch_npu, which is imported when ranks join."""

from datetime import timedelta
from importlib import import_module
from typing import Any

from tandem_engine.parallel.process_groups import Backend, name_in_store
from tandem_engine.parallel.world import WORLD, Group


def hccl() -> Backend:
    """Return HCCL, which adds bfloat16 as it is."""
    return Backend(
        make_group=_make_group,
        device="npu",
        sums_bfloat16=True,
        name_group=lambda members, place: members.get_hccl_comm_name(place),
    )


def _make_group(store: Any, group: Group, place: int, timeout: timedelta) -> Any:
    """Make it as torch_npu's own registration does (torch_npu/_init/registry/distributed.py)."""
    kind: Any = import_module("torch_npu")._C._distributed_c10d.ProcessGroupHCCL  # noqa: SLF001
    options = kind.Options()
    options.is_high_priority_stream = False
    options._timeout = timeout  # noqa: SLF001
    options.global_ranks_in_group = [] if group.name == WORLD else list(group.ranks)
    options.group_id = name_in_store(group)
    return kind(store, place, len(group.ranks), options)
