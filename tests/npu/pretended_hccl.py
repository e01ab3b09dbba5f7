"""Process groups of pretended cards: gloo in HCCL's place, on this host."""

from datetime import timedelta
from typing import Any, Final

import torch.distributed

from tandem_engine.parallel.process_groups import Backend
from tandem_engine.parallel.world import Group

_LOOPBACK: Final = "127.0.0.1"
_TORCH: Final[Any] = torch.distributed


def hccl() -> Backend:
    """Return gloo, which is slow in bfloat16: sums are those of float32."""
    return Backend(make_group=_make_group, device="cpu", sums_bfloat16=False)


def _make_group(store: Any, group: Group, place: int, timeout: timedelta) -> Any:
    options = _TORCH.ProcessGroupGloo._Options()
    options._devices = [_TORCH.ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
    options._timeout = timeout
    return _TORCH.ProcessGroupGloo(store, place, len(group.ranks), options)
