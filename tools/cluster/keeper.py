"""`python -m tools.cluster.keeper ORDER`: holds one cluster, and leaves nothing of it behind.

It stays outside the sandbox and owns what is outside: cgroups, the caller's end of the cable, the
folder. It ends the cluster when

- the sandbox's first process ends,
- it is told to (SIGTERM, SIGINT, SIGHUP),
- its standard input closes before it read `detach`: the command that started it is gone,
- the owner, if there is one, ends.

If it is killed outright, the kernel kills the sandbox's first process and with it all others; the
next command that sees the folder removes the rest.
"""

import json
import os
import selectors
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from tandem_serve.processes import read_process, signal_socket
from tools.cluster import cgroups, kernel, machine, remains, rootfs
from tools.cluster.addresses import Slice
from tools.cluster.cgroups import Hierarchy
from tools.cluster.errors import ClusterError
from tools.cluster.network import Network, interface_number
from tools.cluster.state import (
    DETACH,
    Files,
    Identity,
    Order,
    Record,
    write_atomically,
)

EXIT_TOLD: Final = 0
EXIT_FAILED: Final = 1

_END_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_NAMESPACES: Final = (
    kernel.NEW_MOUNTS
    | kernel.NEW_NETWORK
    | kernel.NEW_CGROUPS
    | kernel.NEW_HOSTNAME
    | kernel.NEW_IPC
)


def main(file: str) -> int:
    """Keep the cluster that the order in `file` asks for; return the exit code."""
    order = Order.from_json(Path(file).read_text(encoding="utf-8"))
    return Keeper(order).run()


class Keeper:
    """One cluster from its first namespace to its last file."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._files = Files(Path(order.folder))
        self._network = Network(Path(order.packages))
        self._record = Record(name=order.name, keeper=identity(os.getpid()))
        self._signals = signal_socket((*_END_SIGNALS, signal.SIGCHLD))
        self._is_detached = False

    def run(self) -> int:
        """Start, watch, and take away."""
        try:
            self._claim()
            init, go = self._fork_machine()
            self._connect(init, go)
            return self._watch(init)
        except (ClusterError, OSError) as error:
            _send("failed", str(error))
            return EXIT_FAILED
        finally:
            remains.remove(self._record, self._files, self._network)

    def _claim(self) -> None:
        """Write down what will be held before it is, so that a crash leaves nothing unknown."""
        self._hierarchies = cgroups.find_hierarchies()
        name = f"tandem-{self._order.name}-{os.getpid()}"
        folders = cgroups.plan(self._hierarchies, name)
        self._note(cgroups=tuple(map(str, folders)))
        _send("claimed", "")
        cgroups.create(folders)

    def _note(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        write_atomically(self._files.record, self._record.to_json())

    def _fork_machine(self) -> tuple[int, int]:
        """Fork the sandbox's first process; return its pid, and where to tell it to go on."""
        own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        waits, go = os.pipe()
        unshared, says_unshared = os.pipe()
        kernel.unshare(kernel.NEW_PIDS)
        init = os.fork()
        if init == 0:
            os.close(go)
            os.close(unshared)
            cgroup_folders = [Path(folder) for folder in self._record.cgroups]
            _be_init(self._order, cgroup_folders, self._hierarchies, waits, says_unshared)
        # Only the first process was to be in the new namespace, not the `ip` of the next line.
        kernel.set_namespace(own_pids, kernel.NEW_PIDS)
        for descriptor in (own_pids, waits, says_unshared):
            os.close(descriptor)
        self._note(init=identity(init))
        os.read(unshared, 1)
        os.close(unshared)
        return init, go

    def _connect(self, init: int, go: int) -> None:
        addresses = self._network.connect(init)
        number = interface_number(addresses.interface)
        self._note(slice=addresses.index, interface=number)
        os.write(go, str(addresses.index).encode())
        os.close(go)

    def _watch(self, init: int) -> int:
        """Wait for a reason to end; return the exit code that it means."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._signals, selectors.EVENT_READ, partial(self._on_signal, init))
            selector.register(sys.stdin.buffer, selectors.EVENT_READ, self._on_caller)
            if self._order.owner is not None:
                owner = _open_process(self._order.owner)
                selector.register(owner, selectors.EVENT_READ, lambda: EXIT_TOLD)
            while True:
                for key, _ in selector.select():
                    code = key.data()
                    if code is not None:
                        return int(code)
                    if self._is_detached and sys.stdin.buffer in selector.get_map():
                        selector.unregister(sys.stdin.buffer)

    def _on_signal(self, init: int) -> int | None:
        if not set(self._signals.recv(4096)).isdisjoint(_END_SIGNALS):
            return EXIT_TOLD
        return EXIT_FAILED if _has_ended(init) else None

    def _on_caller(self) -> int | None:
        self._is_detached = os.read(sys.stdin.fileno(), len(DETACH)) == DETACH
        return None if self._is_detached else EXIT_TOLD


def identity(pid: int) -> Identity:
    """The process `pid`, for good.

    Raises:
        ClusterError: there is no such process.
    """
    process = read_process(pid)
    if process is None:
        raise ClusterError(f"there is no process {pid}")
    return Identity(pid=pid, started=process.started)


def _open_process(pid: int) -> int:
    """A descriptor that becomes readable when the process ends."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise ClusterError(f"the owner, process {pid}, does not run") from error


def _has_ended(pid: int) -> bool:
    ended, _ = os.waitpid(pid, os.WNOHANG)
    return ended == pid


def _send(event: str, text: str) -> None:
    """Tell the caller, if it still listens."""
    with suppress(OSError):
        os.write(sys.stdout.fileno(), (json.dumps({"event": event, "text": text}) + "\n").encode())


def _be_init(
    order: Order,
    cgroup_folders: list[Path],
    hierarchies: list[Hierarchy],
    waits: int,
    says_unshared: int,
) -> NoReturn:
    """Process 1 of the sandbox: makes the machine, then takes leave of orphans."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_END_SIGNALS, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        kernel.die_with_parent(signal.SIGKILL)
        cgroups.join(cgroup_folders)
        kernel.unshare(_NAMESPACES)
        os.close(says_unshared)
        index = os.read(waits, 16)
        if index:  # else the keeper is gone
            _make_machine(order, Slice(int(index)), hierarchies)
    except (ClusterError, OSError) as error:
        _send("failed", str(error))
    finally:
        os._exit(EXIT_FAILED)


def _make_machine(order: Order, addresses: Slice, hierarchies: list[Hierarchy]) -> None:
    rootfs.enter(order, hierarchies)
    supervisor = os.fork()
    if supervisor == 0:
        _be_supervisor(order, addresses)
    while os.wait()[0] != supervisor:
        pass


def _be_supervisor(order: Order, addresses: Slice) -> NoReturn:
    started = time.monotonic()

    def report(event: str, text: str) -> None:
        _send(event, f"{text} {time.monotonic() - started:.1f} s" if text else "")

    try:
        machine.run(order, addresses, report)
    except (ClusterError, OSError) as error:
        _send("failed", str(error))
    finally:
        os._exit(EXIT_FAILED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
