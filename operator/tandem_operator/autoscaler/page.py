"""Reads a page of metrics from a pod, by as little HTTP as that takes."""

import asyncio
from typing import Final
from urllib.parse import urlsplit

from tandem_operator.autoscaler.replicas import ReplicaPod
from tandem_operator.k8s.names import REPLICA_METRICS_PORT

REPLICA_ADDRESS: Final = f"http://{{ip}}:{REPLICA_METRICS_PORT}/metrics"
"""Address of a replica's own metrics."""

_TIMEOUT_S: Final = 2.0
_MAX_BYTES: Final = 2**20
_CHUNK: Final = 2**16
_OK: Final = b" 200 "
_END_OF_HEAD: Final = b"\r\n\r\n"


async def read_replica(address: str, pod: ReplicaPod) -> bytes | None:
    """Return the metrics of a replica; None: it cannot be read in time.

    Args:
        address: May contain {ip} and {pod}.
        pod: Its pod.
    """
    if not pod.ip:
        return None
    ip = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await read_page(address.format(ip=ip, pod=pod.name))
    except (TimeoutError, OSError, ValueError):
        return None


async def read_page(url: str) -> bytes | None:
    """Return the body of a plain 200 response; None: there is none within the bounds.

    An HTTP client would take as much time as all of the decision, each period. HTTP/1.0 has neither
    chunks nor interim responses: the answer ends with the connection.

    Raises:
        OSError, ValueError: nothing answers, or the address is none.
    """
    parts = urlsplit(url)
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=_CHUNK)
    try:
        request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n"
        writer.write(request.encode("ascii"))
        answer = bytearray()
        while piece := await reader.read(_CHUNK):
            answer += piece
            if len(answer) > _MAX_BYTES:
                return None
    finally:
        writer.transport.abort()
    head, _, body = bytes(answer).partition(_END_OF_HEAD)
    return body if _OK in head.partition(b"\r\n")[0] + b" " else None
