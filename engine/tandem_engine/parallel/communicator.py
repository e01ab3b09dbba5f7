"""The interface by which the ranks of a replica exchange tensors.

Implementations: `shared_memory` for ranks of one host, `process_groups` for cards (HCCL). NCCL and
HCCL map to it so:

- nccl: `ncclAllReduce`, `ncclReduceScatter`, `ncclAllGather`, `ncclBroadcast`, `ncclSend`,
  `ncclRecv` on torch's current stream, one communicator a group (ncclCommSplit); a thread of its
  own asks `ncclCommGetAsyncError` and how long the first call has been under way, and ends both by
  `ncclCommAbort`.
- hccl: `HcclAllReduce` and so on with the same arguments on the current ACL stream, groups by
  `HcclCreateSubCommConfig`; `HcclGetCommAsyncError` and `HcclCommDestroy`. The record of calls is
  the caller's in both.

Rules that hold for all of them:

- **Streams.** A call is work of the stream that it is made in (`device.streams.Stream.run`), as a
  kernel is: it comes behind what the stream holds, and what is put in later comes behind it. So it
  may return before it is done, and no caller waits for it on the host; on a host, whose streams are
  threads, it is done when it returns. Until then tensors are kept, and other streams touch them
  only behind a job that is behind the call.
- **One order.** A rank makes its calls in a group in one order, from one thread at a time; all
  members make the same calls in it, and they are carried out in that order. Another thread has
  groups of its own, as sends against the usual direction have: so a rank goes on while its peer has
  not read yet.
- **Faults.** A dead peer, a peer that calls something else, and silence beyond `timeout_s` raise
  CollectiveError: from the call, or, where that has returned before it was done, from a later one
  and from `check`. Then the world has failed: every later call of every rank raises, what is queued
  ends, so that no job is waited for for ever, and no tensor of an unfinished call can be relied on.
- **Misuse.** A wrong argument of one call raises ValueError before any other rank notices.
"""

from typing import Protocol

from torch import Tensor

from tandem_engine.parallel.silence import Silence
from tandem_engine.parallel.world import WORLD, WorldShape


class Communicator(Protocol):
    """Collectives of one rank. Tensors are contiguous; places count within a group, from 0."""

    @property
    def rank(self) -> int:
        """This rank in the world."""

    @property
    def shape(self) -> WorldShape:
        """All ranks, and their groups."""

    def all_reduce(self, tensor: Tensor, group: str = WORLD) -> None:
        """Replace `tensor` by the sum of the members' tensors; all get the same bits.

        Args:
            tensor: Of float32, or of bfloat16, which is summed in float32.
            group: Name of a group that this rank is in.
        """

    def reduce_scatter(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        """Sum the members' tensors, and put this member's piece of the sum into `out`.

        Args:
            out: A tensor of 1/n of the elements, for n members.
            tensor: Of float32 or bfloat16; n pieces, one behind another.
            group: Name of a group that this rank is in.
        """

    def all_gather(self, out: Tensor, tensor: Tensor, group: str = WORLD) -> None:
        """Put the members' tensors one behind another into `out`.

        Args:
            out: A tensor of n times the elements, for n members.
            tensor: Of any dtype; may be this member's own piece of `out`.
            group: Name of a group that this rank is in.
        """

    def broadcast(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        """Replace `tensor` by that of the member at place `source`."""

    def send(self, tensor: Tensor, target: int, group: str = WORLD) -> None:
        """Send to the member at place `target`, which receives a tensor of the same size.

        Sends from one rank to another arrive in their order. A sender may be some calls ahead: it
        waits for its receiver only where no buffer is free.
        """

    def receive(self, tensor: Tensor, source: int, group: str = WORLD) -> None:
        """Fill `tensor` with what the member at place `source` sends."""

    def handle(self, group: str) -> str:
        """Name by which operators that communicate themselves know a group.

        Raises:
            ConfigError: There are no such operators.
        """

    def check(self) -> None:
        """Make sure that no call has failed that the host has waited for.

        To be called before the host relies on what a call has given: not for each call, but once
        for the results of a step.

        Raises:
            CollectiveError: One has; see Faults.
        """

    def expect(self, seconds: float) -> None:
        """Bound the time for which ranks may compute between two calls, by what a step may take.

        Args:
            seconds: Time on top of the longest silence; 0: there is no prediction.
        """

    def silence_of(self, rank: int) -> Silence:
        """The silence of a rank for which one thread is about to wait."""

    def failure(self) -> str | None:
        """The cause of which the world has failed, a sentence; None: it has not. Any thread."""

    def abort(self, cause: str) -> None:
        """Make every call of every rank raise from now on; `cause` is a sentence.

        For a rank that cannot go on. Any thread may call it at any time.
        """

    def close(self) -> None:
        """Leave the world and release what belongs to this rank. May be called again.

        A peer that waits for a call that this rank has not made raises.
        """
