"""Settings of the HTTP layer, and its clocks and ids."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem_engine.api.errors import ConfigError

MAX_LINK_NUM: Final = 4096
"""MindIE's upper bound."""

MAX_TIMEOUT_S: Final = 65535
"""MindIE's upper bound of e2eTimeout."""

SPARE_READERS: Final = 32
"""Half of the calls that Ray Serve admits beyond 4 maxLinkNum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The settings of one HTTP application.

    Raises:
        ConfigError: a value is out of its range.
    """

    model_name: str
    """The name that requests give in `model` and that /v1/models lists."""
    created_s: int
    """When the model was made available, in seconds since 1970."""
    max_link_num: int = 1000
    """MindIE's maxLinkNum: three times as many sequences may be in process and waiting."""
    max_request_bytes: int = 4 * 2**20
    """Largest body of a request; nothing of a larger one is kept."""
    max_bodies_bytes: int = 128 * 2**20
    """Bytes of all bodies in flight, from their first byte until the engine has their requests; at
    least four times max_request_bytes, so that two of the largest always fit."""
    body_timeout_s: float = 30.0
    """Seconds in which a body must come, beside a second for each MiB of it."""
    least_body_timeout_s: float = 1.0
    """The same for the oldest ones, where more than max_readers come at once."""
    e2e_timeout_s: float = 600.0
    """MindIE's e2eTimeout: how long a call may take from its first byte to its last; callers may
    set less."""
    head_after_s: float = 0.5
    """Seconds after which a stream's head is sent though it has no event yet; a request that fails
    before has a status."""
    comment_after_s: float = 15.0
    """Seconds of silence after which a stream has a comment, or twice as many: far from the minute
    after which proxies end a connection."""
    max_inline_length: int = 8192
    """Bodies (bytes) and prompts (characters) up to this are handled on the event loop at once;
    longer ones in a thread, so that they do not block the streams of others."""
    api_keys_folder: Path | None = None
    """Folder of files with an API key each; None: requests need no key."""
    strict: bool = False
    """Refuse unknown fields of requests, which are ignored and named otherwise."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages whose scripts may call the service; "*" is every one."""
    returns_request_id: bool = True
    """Put x-request-id on responses. Ray Serve does so itself: false there, or it comes twice."""

    def __post_init__(self) -> None:
        if not self.model_name:
            raise ConfigError("model_name is empty; give the model a name.")
        if not 1 <= self.max_link_num <= MAX_LINK_NUM:
            raise ConfigError(
                f"max_link_num is {self.max_link_num}; it must be in [1, {MAX_LINK_NUM}]."
            )
        if not 0 < self.e2e_timeout_s <= MAX_TIMEOUT_S:
            raise ConfigError(
                f"e2e_timeout_s is {self.e2e_timeout_s}; it must be above 0 and at most "
                f"{MAX_TIMEOUT_S}."
            )
        if self.max_request_bytes < 1:
            raise ConfigError(
                f"max_request_bytes is {self.max_request_bytes}; it must be at least 1."
            )

    @property
    def bodies_budget(self) -> int:
        """Bytes of all bodies in flight, in force."""
        return max(self.max_bodies_bytes, 4 * self.max_request_bytes)

    @property
    def max_readers(self) -> int:
        """Bodies that have the whole time limit.

        Ray Serve admits 4 maxLinkNum + 64 calls; slow bodies may not take the part of it that
        health checks and metrics need beside the 3 maxLinkNum in process.
        """
        return self.max_link_num + SPARE_READERS


def random_id() -> str:
    """32 random hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Clocks and ids; tests pass their own."""

    unix_time_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic
    new_id: Callable[[], str] = random_id
