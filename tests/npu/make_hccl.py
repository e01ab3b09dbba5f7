"""`python -m tests.npu.make_hccl`: joins a world of one card by the real class, and leaves."""

import json
from contextlib import closing
from typing import Any

import torch

from tandem_engine.parallel.hccl import HcclWorld
from tandem_engine.parallel.world import Group, WorldShape

CALLS = (
    "_allgather_base",
    "_reduce_scatter_base",
    "abort",
    "allreduce",
    "broadcast",
    "recv",
    "send",
)


def make() -> dict[str, Any]:
    """Say what was made of which class, what it lacks, and how a tensor of the host is refused."""
    shape = WorldShape(1, (Group("tp", (0,)),))
    with (
        closing(HcclWorld(shape)) as world,
        closing(world.address.join(shape, 0, timeout_s=10)) as communicator,
    ):
        communicator.check()
        groups = dict(communicator._members)
        try:
            communicator.all_reduce(torch.ones(1))
            refusal = ""
        except ValueError as error:
            refusal = str(error)
        return {
            "classes": {name: type(group).__name__ for name, group in groups.items()},
            "missing": [name for name in CALLS if not hasattr(groups["tp"], name)],
            "refusal": refusal,
            "failure": communicator.failure(),
        }


if __name__ == "__main__":
    print(json.dumps(make()))  # noqa: T201
