"""The line of a cache: what different processes write stands in lines of its own."""

import platform
from typing import Final


def cache_line(machine: str) -> int:
    """Bytes of a line on a kind of machine, as `uname -m` names it: `kCacheLine` of cache_line.h.

    The last level of Kunpeng 920, a host of NPUs, has lines of 128 bytes.
    """
    return 128 if machine == "aarch64" else 64


CACHE_LINE: Final = cache_line(platform.machine())
