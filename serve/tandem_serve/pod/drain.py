"""`python -m tandem_serve.pod.drain worker|head`: lets a Ray pod finish its requests first.

Kubernetes runs it as preStop, before it tells Ray to end. It returns when the pod may go, after
ten minutes at the latest, and always with 0: Kubernetes uses no other exit code.

A worker
1. announces to Ray that its node will end, in some time. Serve then soft-stops the node's HAProxy
   (it answers running requests, and closes each connection with its next answer), and lets the
   replicas serve on: an idle connection may still bring a request.
2. announces to Ray, once that HAProxy has ended, that the time is up. Serve then takes the node's
   replicas out of service; they finish their requests.
3. waits for Ray's node process, which ends itself when nothing runs on it any more.

Each wait ends, too, when no connection has been open for a while over which a request could run:
Serve tries to stop a HAProxy only once, and does not stop one whose actor has died.

The head holds Serve's controller, which workers need for this. When the whole RayCluster goes the
head waits for all of them, else for those that leave as well: the others do not go because it does,
and waiting for them would only keep a node from being drained. Ray may also be away for a while:
a head that was lost comes back elsewhere, if it has a store that outlives it, and a worker that
leaves meanwhile announces it then.

HAProxy is not signalled from here: Serve considers one whose admin socket has closed dead, and
after three seconds kills it with all its streams (measured, Ray 2.60).
"""

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path, PurePath
from typing import Final

from tandem_serve.api.draining import GRACEFUL_SHUTDOWN_TIMEOUT_S, HEAD_TIMEOUT_S, SERVE_PORT
from tandem_serve.pod.ray_cluster import ClusterDeleted, OwnRayCluster
from tandem_serve.processes import GONE, Process, all_processes, command_line, is_alive

DASHBOARD: Final = "http://127.0.0.1:8265"

# Longer than HAProxy keeps an idle connection (90 s, Serve's default).
_IDLE_CONNECTIONS_S: Final = 100
# Seconds without a connection after which nothing is waited for. Longer than Serve takes to stop a
# HAProxy and a node on which nothing runs (10 to 18 s), and than a replica's address takes to
# leave a Service.
_IDLE_S: Final = 20
# Ports of the replicas behind HAProxy (Ray's defaults).
_REPLICA_PORTS: Final = range(30_000, 31_001)
# State of a TCP connection, as /proc/net/tcp has it.
_ESTABLISHED: Final = "01"
_IPV6: Final = 6
_ASK_TIMEOUT_S: Final = 30.0
# Longer than a new head takes to start. Where none comes, because the service is being deleted or
# its store is lost, nothing could accept the drain.
_HEAD_AWAY_S: Final = 120
_ANSWER_TIMEOUT_S: Final = 5.0
_TRIES: Final = 3
_POLL_S: Final = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Drain the pod that this runs in; return 0."""
    parser = argparse.ArgumentParser(prog="tandem_serve.pod.drain")
    parser.add_argument("role", choices=["worker", "head"])
    role = parser.parse_args(arguments).role
    try:
        drain_worker() if role == "worker" else drain_head()
    except Exception as error:  # noqa: BLE001  # the pod ends all the same
        _log(f"continuing without draining: {error!r}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Raylet:
    """Ray's node process in this pod."""

    process: Process
    node_id: str
    gcs_address: str
    """Host name and port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An open TCP connection."""

    local_port: int
    peer: IPv4Address | IPv6Address
    peer_port: int


def drain_worker() -> None:
    """Take this node out of service, and wait until nothing runs on it."""
    for raylet in find_raylets():  # a pod has one
        drain_node(raylet, find_haproxies())
        return
    _log("no raylet runs here; nothing to drain")


def drain_node(raylet: Raylet, haproxies: Sequence[Process]) -> None:
    """Take the node of `raylet` out of service, and wait until nothing runs on it."""
    deadline = time.monotonic() + GRACEFUL_SHUTDOWN_TIMEOUT_S
    if haproxies:
        _log(f"waiting up to {_IDLE_CONNECTIONS_S} s for the connections of HAProxy")
        left_s = GRACEFUL_SHUTDOWN_TIMEOUT_S + _IDLE_CONNECTIONS_S
        if not request_drain_until_accepted(raylet, time_left_s=left_s):
            return
        wait_for_end(haproxies, timeout_s=_IDLE_CONNECTIONS_S, is_busy=has_connections)
    _log(f"waiting up to {deadline - time.monotonic():.0f} s for running requests")
    if request_drain_until_accepted(raylet, time_left_s=GRACEFUL_SHUTDOWN_TIMEOUT_S):
        left = deadline - time.monotonic()
        wait_for_end([raylet.process], timeout_s=left, is_busy=has_connections)


def request_drain_until_accepted(raylet: Raylet, *, time_left_s: int) -> bool:
    """Announce to Ray that the node ends in `time_left_s`, repeatedly until it accepts.

    Returns:
        False: the node has ended, no request can run on it, or no head came back in time.
    """
    has_logged = False

    def is_accepted() -> bool:
        nonlocal has_logged
        try:
            request_drain(raylet, time_left_s=time_left_s)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            if not has_logged:
                _log(f"{error}; retrying")
            has_logged = True
            return False
        return True

    return wait_for_end(
        [raylet.process],
        timeout_s=_HEAD_AWAY_S,
        is_busy=has_connections,
        is_enough=is_accepted,
    )


def drain_head(
    dashboard: str = DASHBOARD,
    timeout_s: float = HEAD_TIMEOUT_S,
    cluster: OwnRayCluster | None = None,
) -> None:
    """Wait until no other node of the Ray cluster needs this one, or Ray does not answer."""
    deadline = time.monotonic() + timeout_s
    said = None
    cluster = cluster or OwnRayCluster.of_this_pod()
    while time.monotonic() < deadline:
        nodes = _retry(lambda: worker_addresses(dashboard))
        if nodes is None:
            _log("Ray does not answer; continuing")
            return
        try:
            leaving = None if cluster is None or not nodes else cluster.leaving_workers()
        except ClusterDeleted:
            cluster = leaving = None
        except (OSError, ValueError, LookupError, TypeError):
            leaving = None
        others = len(nodes if leaving is None else leaving.intersection(nodes))
        if not others:
            return
        if others != said:
            _log(f"waiting up to {timeout_s:.0f} s for {others} other node(s) of the Ray cluster")
            said = others
        time.sleep(_POLL_S)


def find_raylets() -> Iterator[Raylet]:
    """Ray's node processes."""
    for process in all_processes():
        program, options = _command(process)
        if program == "raylet" and "--node_id" in options and "--gcs-address" in options:
            yield Raylet(
                process=process,
                node_id=options["--node_id"],
                gcs_address=options["--gcs-address"],
            )


def resolve_gcs(raylet: Process, gcs_address: str) -> str:
    """The GCS as the `raylet` is connected to it.

    Its name ends with the Service of the head, which Kubernetes deletes at once with the Ray
    cluster, minutes before the pods: it cannot be reached by name then.
    """
    _, _, port = gcs_address.rpartition(":")
    for connection in connections_seen_by(raylet.pid):
        if str(connection.peer_port) == port:
            address = connection.peer
            return f"[{address}]:{port}" if address.version == _IPV6 else f"{address}:{port}"
    return gcs_address


def has_connections() -> bool:
    """True while a connection is open over which this pod may have a request, or may be."""
    try:
        ports = {connection.local_port for connection in connections_seen_by(os.getpid())}
    except OSError:
        return True  # they cannot be read now
    return SERVE_PORT in ports or not ports.isdisjoint(_REPLICA_PORTS)


def connections_seen_by(pid: int) -> Iterator[Connection]:
    """The connections in the network namespace of a process; none if it has ended.

    Raises:
        OSError: They cannot be read now.
    """
    for table in ("tcp", "tcp6"):
        try:
            text = Path(f"/proc/{pid}/net/{table}").read_text(encoding="ascii")
        except GONE:
            continue
        yield from established_connections(text)


def established_connections(table: str) -> Iterator[Connection]:
    """The connections in the text of /proc/net/tcp or /proc/net/tcp6."""
    for line in table.splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if state == _ESTABLISHED:
            address, _, port = remote.partition(":")
            local_port = int(local.rpartition(":")[2], 16)
            yield Connection(local_port=local_port, peer=_address(address), peer_port=int(port, 16))


def _address(hexadecimal: str) -> IPv4Address | IPv6Address:
    """An address as the kernel prints it: words of 32 bits in the machine's byte order."""
    words = [hexadecimal[at : at + 8] for at in range(0, len(hexadecimal), 8)]
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    address = ip_address(packed)
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def find_haproxies() -> list[Process]:
    """The HAProxy processes; Serve starts a new one whenever its replicas change."""
    return [process for process in all_processes() if _command(process)[0] == "haproxy"]


def request_drain(raylet: Raylet, *, time_left_s: int) -> None:
    """Announce to Ray, once, that the node ends in `time_left_s`.

    Serve stops the node's replicas when less time is left than they may take to finish.

    Raises:
        RuntimeError, TimeoutExpired: Ray did not accept it.
        OSError: It could not be asked.
    """
    # A process of its own: Ray's client takes the whole process down when Ray is not there.
    done = subprocess.run(  # noqa: S603  # Ray's own command
        [
            *(sys.executable, "-m", "ray.scripts.scripts", "drain-node"),
            *("--address", resolve_gcs(raylet.process, raylet.gcs_address)),
            *("--node-id", raylet.node_id),
            *("--reason", "DRAIN_NODE_REASON_PREEMPTION"),
            *("--reason-message", "The pod is being deleted."),
            *("--deadline-remaining-seconds", str(time_left_s)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_ASK_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"Ray did not accept the drain of its node: {last_line}")


def worker_addresses(dashboard: str) -> list[str]:
    """The addresses of the worker nodes of the Ray cluster that are alive.

    Raises:
        OSError, ValueError: Ray did not answer, or not with a list of nodes.
    """
    request = urllib.request.Request(f"{dashboard}/api/v0/nodes?limit=10000")  # noqa: S310
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    # Loopback: the environment's proxies have no part in it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=_ANSWER_TIMEOUT_S) as response:
        nodes = json.load(response)["data"]["result"]["result"]
    alive = [node for node in nodes if node["state"] == "ALIVE" and not node["is_head_node"]]
    return [node["node_ip"] for node in alive]


def _retry(ask: Callable[[], list[str]]) -> list[str] | None:
    """Return the result of `ask`; None: it failed several times."""
    for _ in range(_TRIES):
        try:
            return ask()
        except (OSError, ValueError, LookupError, TypeError):
            time.sleep(_POLL_S)
    return None


def _command(process: Process) -> tuple[str, dict[str, str]]:
    """Name of the program, and its options of the form --name=value."""
    program, *arguments = command_line(process.pid) or [""]
    pairs = (argument.partition("=") for argument in arguments)
    return PurePath(program).name, {name: value for name, equals, value in pairs if equals}


def wait_for_end(
    processes: Sequence[Process],
    *,
    timeout_s: float,
    is_busy: Callable[[], bool],
    idle_s: float | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until all of `processes` have ended, the time is up, or nothing was busy for `idle_s`.

    Args:
        processes: The processes to wait for.
        timeout_s: The longest wait.
        is_busy: True while there is something to wait for.
        idle_s: Seconds for which it must be false; None: 20.
        is_enough: True once waiting may end before all that.

    Returns:
        True when it ended because of `is_enough`.
    """
    idle_s = _IDLE_S if idle_s is None else idle_s
    started = busy_at = time.monotonic()
    while (now := time.monotonic()) < started + timeout_s:
        if not any(map(_may_run, processes)):
            return False
        if is_enough():
            return True
        if is_busy():
            busy_at = now
        if now - busy_at > idle_s:
            _log(f"no connection for {idle_s:.0f} s; continuing")
            return False
        time.sleep(_POLL_S)
    return False


def _may_run(process: Process) -> bool:
    """False when it has ended for certain."""
    try:
        return is_alive(process.pid, process.started)
    except OSError:
        return True


def _log(text: str) -> None:
    print(f"tandem drain: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
