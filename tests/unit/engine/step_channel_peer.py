"""A process at one end of a channel of steps, which tests drive line by line.

python step_channel_peer.py FD read PLACE TIMEOUT    prints a line for each message
python step_channel_peer.py FD write RANKS TIMEOUT   publishes as many bytes as a line says
"""

import mmap
import sys
from hashlib import sha256

from tandem_engine.runner.peer_process import PeerLost
from tandem_engine.runner.step_channel import (
    NoChannel,
    StepChannelClosed,
    StepReader,
    StepWriter,
)


def main(fd: str, end: str, who: str, timeout_s: str) -> None:
    """Be that end until it is over; the last line names the reason."""
    memory = memoryview(mmap.mmap(int(fd), 0))
    try:
        if end == "read":
            read(StepReader(memory, place=int(who), timeout_s=float(timeout_s)))
        else:
            ranks = tuple(map(int, who.split(",")))
            write(StepWriter(memory, ranks=ranks, timeout_s=float(timeout_s)))
    except (PeerLost, NoChannel, StepChannelClosed) as error:
        say(f"{type(error).__name__}: {error}")


def read(reader: StepReader) -> None:
    """Print what comes."""
    say("ready")
    while True:
        message = reader.receive()
        say(f"{len(message)} {sha256(message).hexdigest()}")


def write(writer: StepWriter) -> None:
    """Publish what is asked for."""
    say("ready")
    for line in sys.stdin:
        if line.strip() == "close":
            writer.close()
        else:
            writer.publish(bytes(int(line)))
        say("done")


def say(text: str) -> None:
    """Print a line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
