"""The two layouts of streams, on whatever a device has."""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import torch

from tandem_engine.device.host_streams import HostStream, ThreadStream
from tandem_engine.device.streams import Stream, StreamLayout
from tandem_engine.device.torch_streams import Accelerator

COMPUTE: Final = "compute"
COMMUNICATION: Final = "communication"
SEND: Final = "send"
LATER: Final = "later"


class StreamsBy(StrEnum):
    """What a stream is for."""

    KIND = "kind"
    """One computes, and one communicates, as in vLLM's dual-batch overlap."""
    HALF = "half"
    """Each has one half, which it computes and communicates, as in MindIE."""


def open_streams(device: torch.device, by: StreamsBy = StreamsBy.KIND) -> StreamLayout:
    """Make the streams of a rank on its device."""
    if device.type == "cpu":
        return arrange(HostStream(COMPUTE), ThreadStream, by, later=HostStream(LATER))
    accelerator = Accelerator(device)
    later = accelerator.stream(LATER)
    return arrange(accelerator.current_stream(COMPUTE), accelerator.stream, by, later=later)


def arrange(
    current: Stream, new: Callable[[str], Stream], by: StreamsBy, *, later: Stream
) -> StreamLayout:
    """Lay streams out.

    Args:
        current: The one that all other work goes into.
        new: Makes a further one, by its name.
        by: The layout.
        later: That of logits which other ranks compute; see `StreamLayout`.
    """
    send = new(SEND)
    if by is StreamsBy.KIND:
        link = new(COMMUNICATION)
        return StreamLayout(current, (current, current), (link, link), send, later)
    halves = (new("micro-batch 0"), new("micro-batch 1"))
    return StreamLayout(current, halves, halves, send, later)
