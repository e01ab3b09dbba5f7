"""Ports for servers that must be told theirs before they listen."""

import random
import socket
from contextlib import closing
from typing import Final

_FIRST: Final = 20_000
_LAST: Final = 32_000
"""Above the ports of Ray's workers, below those that the kernel gives to connections and to servers
that take any: a port that is free now is still free when the server starts."""


def free_port() -> int:
    """Return a port of loopback on which nothing listens."""
    # Not the tests' own sequence of numbers, which may be the same in two processes.
    numbers = random.SystemRandom()
    while True:
        port = numbers.randint(_FIRST, _LAST)
        with closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
