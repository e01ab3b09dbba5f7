"""Commands and time limits by which a Ray pod ends without losing a request.

The commands run `tandem_serve.pod.drain`.
"""

from typing import Final

SERVE_PORT: Final = 8000
"""Port of the endpoint in a pod."""

GRACEFUL_SHUTDOWN_TIMEOUT_S: Final = 600
"""MindIE's e2eTimeout: the longest time that a stopping replica has for its requests."""

DRAIN_WORKER: Final = ("python", "-m", "tandem_serve.pod.drain", "worker")
"""preStop of a worker pod."""

DRAIN_HEAD: Final = ("python", "-m", "tandem_serve.pod.drain", "head")
"""preStop of the head pod."""

HEAD_TIMEOUT_S: Final = GRACEFUL_SHUTDOWN_TIMEOUT_S + 30
"""The longest that the head waits for the workers, which need some seconds to end."""

TERMINATION_GRACE_PERIOD_S: Final = HEAD_TIMEOUT_S + 30
"""terminationGracePeriodSeconds of every Ray pod: more than its preStop and its end may take."""
