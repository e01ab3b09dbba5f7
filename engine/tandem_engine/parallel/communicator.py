"""The interface by which the ranks of a replica exchange tensors.

Implementations: `shared_memory` for ranks of one host, `gloo` between hosts. Others map to it so:

- nccl: `ncclAllReduce`, `ncclReduceScatter`, `ncclAllGather`, `ncclBroadcast`, `ncclSend`,
  `ncclRecv` on one stream of communication, one communicator a group (ncclCommSplit); the event is
  a CUDA event recorded behind the call, and a fault is `ncclCommGetAsyncError`, then
  `ncclCommAbort`.
- hccl: `HcclAllReduce` and so on with the same arguments on an ACL stream, groups by
  `HcclCreateSubCommConfig`; the event is an ACL event; `HcclGetCommAsyncError` and
  `HcclCommDestroy`. The record of calls is the caller's in both.

Rules that hold for all of them:

- **One order.** A rank makes its calls in one order, from one thread at a time; all members of a
  group make the same calls in it. They are carried out in the order of the calls, whatever thread
  or stream does it. What one rank sends to another is an order of its own, for which each of the
  two may have a further thread: so a rank goes on while its peer has not read yet.
- **Events.** From the call until its event has been waited for, the tensors belong to the
  communicator: they may be neither read nor written. An implementation may be done when the call
  returns (as `shared_memory` is), or carry calls out in a thread or stream of its own. An event
  may be waited for again, then without effect.
- **Faults.** A dead peer, a peer that calls something else, and silence beyond `timeout_s` raise
  CollectiveError from a call or from the wait for its event. Then the world has failed: every later
  call of every rank raises, and no tensor of an unfinished call can be relied on.
- **Misuse.** A wrong argument of one call raises ValueError before any other rank notices.
"""

from typing import Protocol

from torch import Tensor

from tandem_engine.parallel.world import WORLD, WorldShape


class CollectiveEvent(Protocol):
    """The point at which a collective is done."""

    def wait(self) -> None:
        """Block until the result is there.

        Raises:
            CollectiveError: The collective cannot be completed.
        """


class CompletedEvent:
    """The event of a collective that was done when its call returned."""

    def wait(self) -> None:
        """Return at once."""


class Communicator(Protocol):
    """Collectives of one rank. Tensors are contiguous; places count within a group, from 0."""

    @property
    def rank(self) -> int:
        """This rank in the world."""

    @property
    def shape(self) -> WorldShape:
        """All ranks, and their groups."""

    def all_reduce(self, tensor: Tensor, group: str = WORLD) -> CollectiveEvent:
        """Replace `tensor` by the sum of the members' tensors; all get the same bits.

        Args:
            tensor: Of float32, or of bfloat16, which is summed in float32.
            group: Name of a group that this rank is in.
        """

    def reduce_scatter(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> CollectiveEvent:
        """Sum the members' tensors, and put this member's piece of the sum into `out`.

        Args:
            out: A tensor of 1/n of the elements, for n members.
            tensor: Of float32 or bfloat16; n pieces, one behind another.
            group: Name of a group that this rank is in.
        """

    def all_gather(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> CollectiveEvent:
        """Put the members' tensors one behind another into `out`.

        Args:
            out: A tensor of n times the elements, for n members.
            tensor: Of any dtype; may be this member's own piece of `out`.
            group: Name of a group that this rank is in.
        """

    def broadcast(self, tensor: Tensor, source: int, group: str = WORLD) -> CollectiveEvent:
        """Replace `tensor` by that of the member at place `source`."""

    def send(self, tensor: Tensor, target: int, group: str = WORLD) -> CollectiveEvent:
        """Send to the member at place `target`, which receives a tensor of the same size.

        Sends from one rank to another arrive in their order. A sender may be some calls ahead: it
        waits for its receiver only where no buffer is free.
        """

    def receive(self, tensor: Tensor, source: int, group: str = WORLD) -> CollectiveEvent:
        """Fill `tensor` with what the member at place `source` sends."""

    def abort(self, cause: str) -> None:
        """Make every call of every rank raise from now on; `cause` is a sentence.

        For a rank that cannot go on. The only method that any thread may call at any time.
        """

    def close(self) -> None:
        """Leave the world and release what belongs to this rank. May be called again.

        A peer that waits for a call that this rank has not made raises.
        """
