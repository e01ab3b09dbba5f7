"""The ranks of a replica as Ray actors, one in each bundle of the replica's placement group.

Ray counts and assigns the cards of a rank, so it has to start the rank's process; that process then
connects to rank 0's, on a socket of this host. Rank 0 watches it as it would a child, and it ends
with rank 0's process.
"""

import hmac
import logging
import logging.handlers
import multiprocessing.connection
import os
import queue
import secrets
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tandem_engine.runner.rank_launcher import REAP_TIMEOUT_S, RankHandle, RankStartError, RankTask
from tandem_serve.pidfd import exit_signal
from tandem_serve.replica_log import OWN_LOGGERS

_LOG: Final = logging.getLogger(__name__)
_CHECK_ACTOR_EVERY_S: Final = 0.5
_HELLO_BYTES: Final = 256
_HELLO_TIMEOUT_S: Final = 1.0
"""Time for one that has connected to say which rank it is; a rank does so at once."""
_HELLO_WORDS: Final = 3
"""Token, rank, use."""
_MESSAGES: Final = "messages"
_RECORDS: Final = "records"


class ActorLauncher:
    """Starts rank r as an actor in bundle r of the placement group that this process is in.

    Args:
        name: Of the replica; ranks are called after it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._listener = _Listener()

    def launch(self, tasks: Sequence[RankTask]) -> Sequence[RankHandle]:
        """Ask Ray for an actor for each task; see `RankLauncher`.

        Raises:
            RankStartError: This process is in no placement group, or in one with too few bundles.
        """
        bundles = _bundles(tasks)
        started: list[_RankActor] = []
        with ExitStack() as undo:
            for task in tasks:
                options = _options(bundles, task.rank)
                started.append(
                    _RankActor(task, f"{self._name} rank {task.rank}", options, self._listener)
                )
                undo.callback(started[-1].close)
            undo.pop_all()
        return started

    def close(self) -> None:
        """Close the socket at which ranks have connected."""
        self._listener.close()


def _bundles(tasks: Sequence[RankTask]) -> PlacementGroup:
    group = ray.util.get_current_placement_group()
    last = max(task.rank for task in tasks)
    if group is None or group.bundle_count <= last:
        count = 0 if group is None else group.bundle_count
        raise RankStartError(
            f"The replica's placement group has {count} bundles, and rank {last} has none there; "
            f"deploy the service with {last + 1} placement_group_bundles."
        )
    return group


def _options(group: PlacementGroup, rank: int) -> dict[str, Any]:
    """Options of the actor that takes all of its bundle."""
    bundle = dict(group.bundle_specs[rank])
    own = {"num_cpus": bundle.pop("CPU", 0), "memory": bundle.pop("memory", 0) or None}
    return {
        **own,
        # A rank that asks for no card must not be said to have some.
        "resources": {name: amount for name, amount in bundle.items() if amount},
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=rank
        ),
        # One that has lost its group cannot take part again: all of them start.
        "max_restarts": 0,
        "max_task_retries": 0,
    }


class _Listener:
    """The socket at which ranks connect to rank 0: of this host, of this user, with a token."""

    def __init__(self) -> None:
        self.name = f"\0tandem-ranks-{os.getpid()}-{secrets.token_hex(8)}"
        self.token = secrets.token_hex(16)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.name)
        self._socket.listen()
        self._arrived: dict[tuple[int, str], tuple[Connection, int]] = {}

    def accept(self, rank: int, use: str, timeout_s: float) -> tuple[Connection, int] | None:
        """A connection of a rank and the process at its other end; None: not yet."""
        deadline = time.monotonic() + timeout_s
        while (rank, use) not in self._arrived:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not multiprocessing.connection.wait([self._socket], left_s):
                return None
            self._accept_next()
        return self._arrived.pop((rank, use))

    def close(self) -> None:
        self._socket.close()
        for connection, _ in self._arrived.values():
            connection.close()
        self._arrived.clear()

    def _accept_next(self) -> None:
        accepted, _ = self._socket.accept()
        pid, user = _peer_of(accepted)
        connection = Connection(accepted.detach())
        hello = _hello(connection) if user == os.getuid() else ()
        if len(hello) != _HELLO_WORDS or not hmac.compare_digest(hello[0], self.token):
            _LOG.warning("Process %d of user %d is no rank of this replica", pid, user)
            connection.close()
            return
        _, rank, use = hello
        self._arrived[int(rank), use] = connection, pid


class _RankActor:
    """Implements `RankHandle` on an actor."""

    def __init__(
        self, task: RankTask, name: str, options: Mapping[str, Any], listener: _Listener
    ) -> None:
        self.rank = task.rank
        self.pid = 0
        self._listener = listener
        self._sentinel = -1
        self._connection: Connection | None = None
        self._ended_itself = threading.Event()
        self._records: threading.Thread | None = None
        actor: Any = ray.remote(_Rank)
        self._actor = actor.options(**options).remote()
        self._end: ray.ObjectRef[None] = self._actor.run.options(name=name).remote(
            task, listener.name, listener.token
        )

    @property
    def connection(self) -> Connection:
        assert self._connection is not None, "connect comes first; this is a bug"  # noqa: S101
        return self._connection

    @property
    def sentinel(self) -> int:
        return self._sentinel

    def connect(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        connection, self.pid = self._await(_MESSAGES, deadline)
        self._connection = connection
        records, _ = self._await(_RECORDS, deadline)
        self._records = threading.Thread(
            target=self._log, args=(records,), name=f"log of rank {self.rank}", daemon=True
        )
        self._records.start()
        try:
            self._sentinel = os.pidfd_open(self.pid)
        except ProcessLookupError:
            raise RankStartError(f"Rank {self.rank} has ended while it started.") from None

    def how_killed(self) -> str | None:
        if not _has_ended(self._sentinel, 0):
            return None
        number = exit_signal(self._sentinel, timeout_s=REAP_TIMEOUT_S)
        if number is not None:
            return f"was ended by {signal.Signals(number).name}" if number else None
        if self._records is not None:
            self._records.join(REAP_TIMEOUT_S)
        return None if self._ended_itself.is_set() else "was killed"

    def join(self, timeout_s: float) -> bool:
        return self._sentinel < 0 or _has_ended(self._sentinel, timeout_s)

    def close(self) -> None:
        with ExitStack() as stack:
            if self._sentinel >= 0:
                stack.callback(os.close, self._sentinel)
            stack.callback(self._kill)
            if self._connection is not None:
                self._connection.close()
        self._sentinel = -1

    def _kill(self) -> None:
        if self._sentinel >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._sentinel, signal.SIGKILL)
            _has_ended(self._sentinel, None)
        # Ray may not have started it yet; and it may be gone before this process is.
        with suppress(Exception):
            ray.kill(self._actor, no_restart=True)

    def _await(self, use: str, deadline: float) -> tuple[Connection, int]:
        while time.monotonic() < deadline:
            connection = self._listener.accept(self.rank, use, _CHECK_ACTOR_EVERY_S)
            if connection is not None:
                return connection
            self._check_actor()
        raise RankStartError(
            f"Ray has not started rank {self.rank} in time; see whether its placement group has "
            f"the resources, and the log of its node."
        )

    def _check_actor(self) -> None:
        """Refuse an actor that has ended without a connection."""
        if not ray.wait([self._end], timeout=0)[0]:
            return
        try:
            ray.get(self._end)
            cause = "it has ended"
        except ray.exceptions.RayError as error:
            cause = " ".join(str(error).split())
        raise RankStartError(f"Rank {self.rank} cannot start: {cause}.")

    def _log(self, records: Connection) -> None:
        """Pass what the rank logs to this process's loggers, until it ends."""
        with records, suppress(EOFError, OSError):
            while (record := records.recv()) is not None:
                record.msg = f"Rank {self.rank}: {record.msg}"
                logging.getLogger(record.name).handle(record)
            self._ended_itself.set()


class _Rank:
    """The actor."""

    def run(self, task: RankTask, listener: str, token: str) -> None:
        """Be the rank, then end the process."""
        rank_zero = task.address.process
        with ExitStack() as stack:
            messages = stack.enter_context(_connect(listener, f"{token} {task.rank} {_MESSAGES}"))
            records = stack.enter_context(_connect(listener, f"{token} {task.rank} {_RECORDS}"))
            _end_with(rank_zero)
            _log_to(records)
            try:
                task.run(messages)
            except Exception:  # noqa: BLE001  # of whatever kind: all that is left is to say so
                _LOG.exception("It cannot go on")
            finally:
                with suppress(OSError):
                    records.send(None)
        ray.actor.exit_actor()  # type: ignore[no-untyped-call]


def _connect(listener: str, hello: str) -> Connection:
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connected.connect(listener)
    connection = Connection(connected.detach())
    connection.send_bytes(hello.encode())
    return connection


def _hello(connection: Connection) -> Sequence[str]:
    """The words of a peer, which may send anything, or nothing."""
    try:
        if not connection.poll(_HELLO_TIMEOUT_S):
            return ()
        return connection.recv_bytes(_HELLO_BYTES).decode("ascii").split()
    except (OSError, EOFError, ValueError):
        return ()


def _peer_of(connected: socket.socket) -> tuple[int, int]:
    """Process and user at the other end."""
    fields = struct.Struct("3i")
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, fields.size)
    pid, user, _ = fields.unpack(credentials)
    return pid, user


def _end_with(process: int) -> None:
    """End this process when that one has ended: its parent is Ray, so the kernel does not."""
    try:
        pidfd = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=_await_end, args=(process, pidfd), name="rank 0", daemon=True).start()


def _await_end(process: int, pidfd: int) -> None:
    _has_ended(pidfd, None)
    # Rank 0 wrote the log of the replica; what is said here is in the log of Ray's worker.
    sys.stderr.write(f"Rank 0 (process {process}) has ended, and this rank with it.\n")
    sys.stderr.flush()
    os._exit(1)


def _has_ended(pidfd: int, timeout_s: float | None) -> bool:
    waiting = select.poll()
    waiting.register(pidfd, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else timeout_s * 1e3))


class _RecordHandler(logging.handlers.QueueHandler):
    """Sends records, as text, to rank 0, which writes the log of the replica."""

    def __init__(self, records: Connection) -> None:
        super().__init__(queue.Queue())
        self._records = records

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send one; `emit` says on standard error what can no longer be sent."""
        self._records.send(record)


def _log_to(records: Connection) -> None:
    handler = _RecordHandler(records)
    for name in OWN_LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
