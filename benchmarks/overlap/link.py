"""Two network namespaces, joined by a veth pair whose ends send at a chosen rate.

Only waiting is to cost on it, not computing, so packets are large: with the usual MTU of 1,500 the
kernel takes a fifth of a core for the packets, which slows the half that computes, and the overlap
measures that.
"""

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.overlap.errors import LinkError

MTU: Final = 60_000
LOOPBACK: Final = "127.0.0.1"
_BURST: Final = "256kb"
_LATENCY: Final = "1000ms"
_PREFIX: Final = "tandem-overlap"
_NAME: Final = re.compile(rf"{_PREFIX}-(\d+)-[01]")
_FOLDER: Final = Path("/run/netns")
_INTERFACE: Final = "veth0"
# Both namespaces are new, so no address in them is taken.
_ADDRESSES: Final = ("10.231.0.1", "10.231.0.2")
_CLONE_NEWNET: Final = 0x40000000


@dataclass(frozen=True, slots=True)
class End:
    """Where one rank is."""

    namespace: str | None
    """None: that of this process."""
    address: str


LOOPBACK_ENDS: Final = (End(None, LOOPBACK), End(None, LOOPBACK))


class ShapedLink:
    """The link between two namespaces, from `shaped_link`."""

    def __init__(self, namespaces: tuple[str, str]) -> None:
        self._namespaces = namespaces
        self.ends = (
            End(namespaces[0], _ADDRESSES[0]),
            End(namespaces[1], _ADDRESSES[1]),
        )

    def set_rate(self, bits_per_s: float) -> None:
        """Have both ends send at this rate from now on; connections stay.

        Raises:
            LinkError: The kernel refuses.
        """
        for namespace in self._namespaces:
            rate = ("rate", f"{bits_per_s:.0f}bit", "burst", _BURST, "latency", _LATENCY)
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", _INTERFACE, "root", "tbf", *rate)


@contextmanager
def shaped_link() -> Iterator[ShapedLink]:
    """Make the namespaces and the link; take both away at the end.

    Raises:
        LinkError: They cannot be made: a program or a permission is missing.
    """
    _check()
    _remove_stale()
    first, second = (f"{_PREFIX}-{os.getpid()}-{number}" for number in range(2))
    try:
        for namespace in (first, second):
            _run("ip", "netns", "add", namespace)
        _join(first, second)
        yield ShapedLink((first, second))
    finally:
        # The pair goes with its namespaces, and these with the last process in them.
        for namespace in (first, second):
            _remove(namespace)


@contextmanager
def link_or_none(say: Callable[[str], object]) -> Iterator[ShapedLink | None]:
    """Make the link; where there can be none, say so and why, and go on with None."""
    with ExitStack() as stack:
        link = None
        try:
            link = stack.enter_context(shaped_link())
        except LinkError as error:
            say(f"{error} Measured on loopback instead, whose rate is what it is.")
        yield link


def enter(namespace: str | None) -> None:
    """Have this thread, and those that it starts, use the network of a namespace; None: stay.

    Raises:
        OSError: There is no such namespace, or this process may not.
    """
    if namespace is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with (_FOLDER / namespace).open("rb") as opened:
        if libc.setns(opened.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns({namespace}) failed")


def stale(names: Iterator[str] | list[str], *, living: frozenset[int]) -> list[str]:
    """The namespaces of this benchmark whose process has ended."""
    ended = []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None and int(match[1]) not in living:
            ended.append(name)
    return ended


def _check() -> None:
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        raise LinkError(
            f"There is no '{missing[0]}' to make a link with; install iproute2 "
            "(apt-get install iproute2)."
        )
    if os.geteuid():
        raise LinkError("Network namespaces need root; run the benchmark with sudo.")


def _join(first: str, second: str) -> None:
    peer = ("peer", "name", _INTERFACE, "netns", second, "mtu", str(MTU))
    _run(
        *("ip", "-n", first, "link", "add", _INTERFACE, "mtu", str(MTU), "type", "veth", *peer),
    )
    for namespace, address in zip((first, second), _ADDRESSES, strict=True):
        _run("ip", "-n", namespace, "addr", "add", f"{address}/30", "dev", _INTERFACE)
        for interface in ("lo", _INTERFACE):
            _run("ip", "-n", namespace, "link", "set", interface, "up")


def _remove_stale() -> None:
    names = [path.name for path in _FOLDER.glob(f"{_PREFIX}-*")]
    living = frozenset(int(path.name) for path in Path("/proc").glob("[0-9]*"))
    for name in stale(names, living=living):
        _remove(name)


def _remove(namespace: str) -> None:
    if (_FOLDER / namespace).exists():
        _run("ip", "netns", "delete", namespace)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LinkError(f"'{' '.join(command)}' fails: {done.stderr.strip()}.")
