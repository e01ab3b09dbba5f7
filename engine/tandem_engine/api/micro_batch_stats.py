"""What micro-batches bring and cost in one replica, as data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Phase = Literal["prefill", "decode"]
"""prefill: steps with rows of a prompt, those with decodes beside them included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateState:
    """State of the gate of one phase: open, steps are cut where that is predicted to pay."""

    is_open: bool
    reason: str
    """One clause: why it is so since it last changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchStats:
    """Steps in two halves, of rank 0 since its start."""

    num_splits: int
    """Steps that were cut."""
    refusals: Mapping[str, int]
    """Reason for which steps were not cut → their number; every reason from the start."""
    hidden_s: float
    """Seconds of communication under which a half computed."""
    exposed_s: float
    """Seconds of communication that computation waited for; of steps that were not cut, all."""
    overlap: float | None
    """Of the cut steps of the last hour: hidden / min(communication, computation); None: there are
    none."""
    gates: Mapping[Phase, GateState]
    num_kv_blocks: int
    """KV blocks that the memory would hold besides without micro-batches."""


def cost_line(stats: MicroBatchStats, num_kv_blocks: int) -> str:
    """Return the line of the log on what micro-batches cost a replica of `num_kv_blocks`."""
    without = num_kv_blocks + stats.num_kv_blocks
    return (
        f"Micro-batches cost {stats.num_kv_blocks} of {without} KV blocks "
        f"({stats.num_kv_blocks / max(1, without):.1%}): the buffers of two halves take their place"
    )


def gain_line(before: MicroBatchStats, now: MicroBatchStats) -> str:
    """Return the line of the log on what micro-batches have brought since `before`."""
    num_cut = now.num_splits - before.num_splits
    num_whole = sum(now.refusals.values()) - sum(before.refusals.values())
    overlap = "none" if now.overlap is None else f"{now.overlap:.2f}"
    return (
        f"Micro-batches in the last hour: overlap {overlap}; {num_cut} steps were cut, and "
        f"{num_whole} were not; {now.hidden_s - before.hidden_s:.1f} s of communication were "
        f"hidden, and {now.exposed_s - before.exposed_s:.1f} s were not"
    )


def gate_line(phase: Phase, state: GateState) -> str:
    """Return the line of the log on a gate that has turned."""
    steps = "steps with prefill" if phase == "prefill" else "decode steps"
    return f"Micro-batches of {steps} are {'on' if state.is_open else 'off'}: {state.reason}"
