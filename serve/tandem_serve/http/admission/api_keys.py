"""API keys: a folder of files with one each, and the middleware that requires one of them."""

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem_serve.http import errors

OPEN_PATHS: Final = frozenset({"/health"})
"""Paths that need no key. Ray's own (/-/healthz, /-/routes) are answered before this layer."""

REREAD_AFTER_S: Final = 1.0
"""Seconds after which keys are read again; kubelet brings a changed Secret after a minute."""

_BEARER: Final = b"bearer"


class KeyMiddleware:
    """Passes on requests that have a valid key, or need none."""

    def __init__(self, app: ASGIApp, *, keys: "KeyFolder") -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection.

        Raises:
            ApiError: it needs a key and has none that is valid (401).
        """
        if scope["type"] == "http" and not _is_open(scope):
            digest = check_key(scope["headers"], await self._keys.digests())
            scope.setdefault("state", {})["key_digest"] = digest
        await self._app(scope, receive, send)


def _is_open(scope: Scope) -> bool:
    # A browser asks by OPTIONS, without the key, whether a page may send it; no path answers more.
    return scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS"


class KeyFolder:
    """The keys in a folder, followed as they change; only their digests are kept."""

    def __init__(self, folder: Path, monotonic_s: Callable[[], float]) -> None:
        self._folder = folder
        self._monotonic_s = monotonic_s
        self._read_at_s = monotonic_s()
        self._digests = read_digests(folder)

    async def digests(self) -> Sequence[bytes]:
        """Digests of the keys that are valid now, or were a second ago."""
        now_s = self._monotonic_s()
        if now_s - self._read_at_s >= REREAD_AFTER_S:
            # Set first: requests that come meanwhile use the keys of before.
            self._read_at_s = now_s
            self._digests = await asyncio.to_thread(read_digests, self._folder)
        return self._digests


def check_key(headers: Iterable[tuple[bytes, bytes]], digests: Sequence[bytes]) -> bytes:
    """Return the digest of a request's key, which must be among `digests`.

    Raises:
        ApiError: its key is missing or unknown, or there are no keys (401).
    """
    if not digests:
        raise errors.no_keys_set()
    given = _bearer_token(headers)
    if not given:
        raise errors.key_missing()
    digest = _digest(given)
    if not is_known(digest, digests):
        raise errors.key_invalid()
    return digest


def is_known(given: bytes, digests: Sequence[bytes]) -> bool:
    """True when a digest is one of the keys'; takes equally long for every one, known or not."""
    return sum(hmac.compare_digest(given, digest) for digest in digests) > 0


def cache_salt_of(request: Request, salt: str) -> str:
    """The salt with which the engine is to keep a request's prefixes apart.

    With API keys it is one of the key and the caller's own together: no salt of a caller brings it
    to the prefixes of another key, and each keeps apart what it would without.

    Args:
        request: The call.
        salt: `cache_salt` of its body; empty: it has none.
    """
    key_digest: bytes | None = getattr(request.state, "key_digest", None)
    if key_digest is None:
        return salt
    # A digest is of fixed length, so that no two pairs are written the same.
    return hashlib.sha256(key_digest + salt.encode("utf-8", "surrogatepass")).hexdigest()


def read_digests(folder: Path) -> tuple[bytes, ...]:
    """Digests of the keys in `folder`, a file each; empty and unreadable files are none."""
    try:
        files = list(folder.iterdir())
    except OSError:
        return ()
    # Names with two dots are Kubernetes' own: a mounted Secret is swapped by a link called ..data.
    keys = [_read(file) for file in files if not file.name.startswith("..")]
    return tuple(_digest(key) for key in keys if key)


def _read(file: Path) -> bytes:
    try:
        # Editors and `echo` end a file with a newline; no header can carry one.
        return file.read_bytes().strip()
    except OSError:
        return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the token of `Authorization: Bearer …`; empty when there is none."""
    for name, value in headers:
        if name.lower() == b"authorization":
            scheme, _, token = value.partition(b" ")
            return token.strip() if scheme.lower() == _BEARER else b""
    return b""
