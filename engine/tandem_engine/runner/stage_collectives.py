"""The groups of a replica's ranks, and the collectives of its stages, by a communicator."""

from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from tandem_engine.parallel.communicator import Communicator
from tandem_engine.parallel.plan import ParallelShape, RankPlan
from tandem_engine.parallel.world import WORLD, Group, WorldShape

TP: Final = "tp"
"""Ranks that share layers; places are tp ranks."""
LOGITS: Final = "logits"
"""The first rank of the first stage, which receives logits, and that of the last one."""
DP: Final = "dp"
"""Ranks that hold the same; places are dp ranks."""


def hidden_group(stage: int) -> str:
    """The group by which a stage hands its hidden states, from place 0, to the next, at place 1."""
    return f"pp {stage}→{stage + 1}"


def tokens_group(shape: ParallelShape) -> str:
    """The group of all ranks by which rank 0 hands on tokens: one that sums have, where it can be.

    A group of HCCL takes hundreds of MB of a card when it is first used.
    """
    return TP if shape.tp == shape.world_size else WORLD


def world_shape(shape: ParallelShape) -> WorldShape:
    """The world of a replica's ranks; groups of one rank are left out, as they exchange nothing.

    Each group is one communicator of a device, and all calls in it are made by one thread: two
    that send both ways in one group could wait for each other for ever on NCCL and HCCL. So each
    stage sends in a group that it does not receive in, and logits have one of their own.
    """
    groups = dict[Group, None]()
    for rank in range(shape.world_size):
        if shape.tp > 1:
            groups[Group(TP, tuple(shape.tp_group(rank)))] = None
        if shape.pp > 1:
            stages = shape.pp_group(rank)
            for stage, pair in enumerate(pairwise(stages)):
                groups[Group(hidden_group(stage), pair)] = None
            if rank % shape.tp == 0:
                groups[Group(LOGITS, (stages[0], stages[-1]))] = None
        if shape.dp > 1:
            groups[Group(DP, tuple(shape.dp_group(rank)))] = None
    return WorldShape(shape.world_size, tuple(groups))


class CommunicatorCollectives:
    """Implements `model.stages.Collectives` among the ranks of tp.

    Args:
        communicator: Of this rank, in the world of `world_shape`.
        plan: Of this rank.
    """

    def __init__(self, communicator: Communicator, plan: RankPlan) -> None:
        self._communicator = communicator
        self._tp, self._tp_rank = plan.num_tp, plan.tp_rank

    def all_reduce(self, tensor: Tensor) -> None:
        """See `Collectives`, as for all methods."""
        self._communicator.all_reduce(tensor, TP)

    def reduce_scatter(self, tensor: Tensor) -> None:
        """Each rank's sum takes the place of its own rows."""
        self._communicator.reduce_scatter(self._own(tensor), tensor, TP)

    def all_gather(self, tensor: Tensor) -> None:
        """The ranks' rows, one behind another."""
        self._communicator.all_gather(tensor, self._own(tensor), TP)

    def gather_columns(self, tensor: Tensor, num_columns: int) -> Tensor | None:
        """Send the tensor to the first rank, which alone needs all columns."""
        if self._tp_rank:
            self._communicator.send(tensor, 0, TP)
            return None
        width = tensor.shape[1]
        gathered = tensor.new_empty(len(tensor), num_columns)
        gathered[:, :width] = tensor
        part = torch.empty_like(tensor)
        for place in range(1, self._tp):
            self._communicator.receive(part, place, TP)
            columns = gathered[:, place * width : (place + 1) * width]
            columns.copy_(part[:, : columns.shape[1]])
        return gathered

    def _own(self, tensor: Tensor) -> Tensor:
        each = len(tensor) // self._tp
        return tensor[self._tp_rank * each : (self._tp_rank + 1) * each]
