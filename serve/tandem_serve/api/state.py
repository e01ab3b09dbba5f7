"""State of a service, read out of Ray's answer; pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem_serve.api.document import DEPLOYMENT

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_OUR_ERROR: Final = re.compile(r"tandem_engine\.api\.errors\.\w+: (?P<text>.+)")
_ANY_ERROR: Final = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*): (?P<text>.+)$")
_LOG_MARK: Final = " -- start-up: "


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica as Ray sees it."""

    replica_id: str
    state: str
    """STARTING, UPDATING, RECOVERING, RUNNING or STOPPING."""
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """One service as Ray sees it."""

    status: str
    """Ray's status of the application: DEPLOYING, RUNNING, DEPLOY_FAILED, UNHEALTHY, …"""
    failure: str | None
    """The reason for which it cannot run, in one sentence."""
    details: str
    """Source of `failure`: Ray's message, with its traceback."""
    target_replicas: int
    replicas: tuple[ReplicaState, ...]

    @property
    def running(self) -> tuple[ReplicaState, ...]:
        """The replicas that serve."""
        return tuple(replica for replica in self.replicas if replica.state == "RUNNING")

    @property
    def is_ready(self) -> bool:
        """True when all desired replicas run; old ones may still finish their requests."""
        expected = [replica for replica in self.replicas if replica.state != "STOPPING"]
        return (
            self.status == "RUNNING" and len(self.running) == len(expected) == self.target_replicas
        )


def service_state(answer: Mapping[str, Any], name: str) -> ServiceState | None:
    """The service `name` in the answer of `GET /api/serve/applications/`; None: not there."""
    application = answer.get("applications", {}).get(name)
    if application is None:
        return None
    # While the application is built there are no deployments in the answer.
    deployment = application.get("deployments", {}).get(DEPLOYMENT, {})
    message = _failure_message(application, deployment)
    return ServiceState(
        status=application["status"],
        failure=root_cause(message) if message else None,
        details=_ANSI.sub("", message),
        target_replicas=deployment.get("target_num_replicas") or 0,
        replicas=tuple(_replica(replica) for replica in deployment.get("replicas", [])),
    )


def root_cause(traceback: str) -> str:
    """The sentence of the root cause in a traceback as Ray shows it, with or without colours."""
    lines = [line.strip() for line in _ANSI.sub("", traceback).splitlines() if line.strip()]
    for line in reversed(lines):
        if ours := _OUR_ERROR.search(line):
            return ours["text"]
    for line in reversed(lines):
        if _ANY_ERROR.match(line):
            return line
    return lines[-1] if lines else ""


def last_startup_line(log: str) -> str | None:
    """The last line of a replica's log on its start."""
    for line in reversed(log.splitlines()):
        _, mark, text = line.partition(_LOG_MARK)
        if mark:
            return text.strip()
    return None


def routed_replicas(table: str, name: str) -> frozenset[str]:
    """Ids of the replicas of service `name` that HAProxy's table of servers (CSV) calls UP."""
    lines = (line.split(",") for line in table.splitlines())
    header = next(lines, [])
    if "status" not in header:
        return frozenset()
    backend, server, status = (header.index(key) for key in ("# pxname", "svname", "status"))
    return frozenset(
        row[server].rpartition("-")[2]
        for row in lines
        if len(row) > status
        and row[backend] == f"http-{name}"
        and row[server].startswith("SERVE_REPLICA_")
        and row[status].startswith("UP")
    )


def _replica(details: Mapping[str, Any]) -> ReplicaState:
    return ReplicaState(
        replica_id=details["replica_id"], state=details["state"], pid=details.get("pid")
    )


def _failure_message(application: Mapping[str, Any], deployment: Mapping[str, Any]) -> str:
    """Ray's message on a service that cannot run; empty while it may."""
    message = str(deployment.get("message") or "")
    # Ray tries three times; what fails in one constructor fails in the next.
    if "failed to start" in message:
        return message
    if application["status"] == "DEPLOY_FAILED":
        return message or str(application.get("message") or "Ray reports no reason.")
    return ""
