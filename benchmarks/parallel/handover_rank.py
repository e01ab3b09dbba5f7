"""A rank beside rank 0, which reads steps and notes the times; run by `handover`.

    python -m benchmarks.parallel.handover_rank FD PLACE BLOCK_SIZE SPIN_S

It prints `ready`, and at the end a JSON list: for each message the CPU time of decoding it,
and the time on the wall at which its batch was laid out; both in nanoseconds.
"""

import json
import mmap
import sys
import time

import torch

from tandem_engine.build import RANK_TIMEOUT_S
from tandem_engine.runner.rank_batches import RankBatches
from tandem_engine.runner.step_channel import StepChannelClosed, StepReader


def main(fd: str, place: str, block_size: str, spin_s: str) -> None:
    """Read until the channel is closed."""
    memory = memoryview(mmap.mmap(int(fd), 0))
    reader = StepReader(memory, place=int(place), timeout_s=RANK_TIMEOUT_S, spin_s=float(spin_s))
    batches = RankBatches(block_size=int(block_size), device=torch.device("cpu"))
    times: list[tuple[int, int]] = []
    _say("ready")
    while True:
        try:
            message = reader.receive()
        except StepChannelClosed:
            break
        came = time.thread_time_ns()
        batches.decode(message)
        times.append((time.thread_time_ns() - came, time.monotonic_ns()))
    _say(json.dumps(times))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
