"""Conditions of a starting machine: each asks once, and answers within a second."""

import http.client
import json
import socket
import ssl
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from tools.cluster.config import API_PORT

_TIMEOUT_S: Final = 1.0


def accepts_tcp(address: str, port: int) -> bool:
    """Return True when a process listens at `address`."""
    try:
        socket.create_connection((address, port), timeout=_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def accepts_unix(path: Path) -> bool:
    """Return True when a process listens at the socket `path`."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_TIMEOUT_S)
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True


def answers_http(port: int, path: str) -> bool:
    """Return True when loopback answers GET with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    return _get(connection, path) is not None


class Api:
    """The API server as its administrator sees it."""

    def __init__(self, server: IPv4Address, pki: Path, account: str) -> None:
        self._server = str(server)
        self._context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._context.load_cert_chain(pki / f"{account}.crt", pki / f"{account}.key")

    def is_ready(self) -> bool:
        """Return True when `/readyz` answers ok."""
        return self._get("/readyz") is not None

    def has(self, path: str) -> bool:
        """Return True when there is an object at `path`."""
        return self._get(path) is not None

    def is_node_ready(self, name: str) -> bool:
        """Return True when the node's condition Ready is True."""
        body = self._get(f"/api/v1/nodes/{name}")
        if body is None:
            return False
        conditions: list[dict[str, Any]] = json.loads(body)["status"].get("conditions", [])
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in conditions
        )

    def _get(self, path: str) -> bytes | None:
        connection = http.client.HTTPSConnection(
            self._server, API_PORT, timeout=_TIMEOUT_S, context=self._context
        )
        return _get(connection, path)


def _get(connection: http.client.HTTPConnection, path: str) -> bytes | None:
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body if response.status == http.HTTPStatus.OK else None
