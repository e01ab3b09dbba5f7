"""Graphs of a device: work that is recorded once, and queued by one call each time.

A step of decodes is hundreds of operators, each of which costs the host some microseconds to queue:
on a fast card more than computing them takes. Its shapes are few, so what it queues is recorded.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from tandem_engine.device.attention import AttentionMetadata


class Graph(Protocol):
    """Work of a device on memory that is its own."""

    def record(self) -> AbstractContextManager[None]:
        """Return a context in which work is recorded, and not done.

        Nothing in it may read from the device, or take memory that is given back while the graph
        is in use: what it makes is in memory that all graphs of a device share.
        """

    def replay(self) -> None:
        """Queue the work in the current stream, on the same memory as when it was recorded."""


class DecodeInputs(Protocol):
    """Inputs of a step of decodes that kernels read from the same memory each time."""

    @property
    def metadata(self) -> AttentionMetadata:
        """Metadata to record with: kernels that are recorded read these inputs for it."""

    def load(self, metadata: AttentionMetadata) -> None:
        """Put in those of a step with as many rows, or fewer: other rows then write nowhere."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """The shape of steps of decodes that are recorded."""

    num_rows: int
    num_kv_heads: int
    block_size: int
    first_spare: int
    """The first KV block of no sequence: rows without a sequence write from there on."""
    device: torch.device


@dataclass(frozen=True, slots=True)
class Graphs:
    """The part of a device that makes graphs."""

    new: Callable[[], Graph]
    """Makes an empty one."""
    inputs: Callable[[DecodeShape], DecodeInputs]
    """Makes the inputs of a recorded step, as this device's kernels read them."""


def num_spare_blocks(max_rows: int, block_size: int) -> int:
    """KV blocks of no sequence that graphs of so many rows need."""
    return -(-max_rows // block_size)
