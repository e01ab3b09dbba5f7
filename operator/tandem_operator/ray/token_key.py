"""The key that Ray's tokens are derived from: one Secret, in the operator's own namespace."""

import asyncio
import base64
import binascii
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Final

from tandem_operator.k8s.client import KubeClient
from tandem_operator.k8s.errors import Conflict, Refused
from tandem_operator.k8s.kinds import SECRET
from tandem_operator.k8s.names import FIELD_MANAGER
from tandem_operator.k8s.objects import NamespacedName, Object
from tandem_operator.ray.token import KEY_BYTES

NAME: Final = f"{FIELD_MANAGER}-token-key"
"""Name of the Secret."""

_FIELD: Final = "key"
_log = logging.getLogger(__name__)


class TokenKey:
    """Reads the key once, and creates it where there is none yet.

    The Secret has no owner: with another key every service gets another Ray cluster, so it stays
    when the operator is uninstalled.
    """

    def __init__(self, kube: KubeClient, namespace: str) -> None:
        self._kube = kube
        self._secret_name = NamespacedName(namespace, NAME)
        self._lock = asyncio.Lock()
        self._key: bytes | None = None

    async def read(self) -> bytes:
        """Return the key.

        Raises:
            KubeError: it can neither be read nor created.
        """
        async with self._lock:
            if self._key is None:
                self._key = self._key_in(await self._read_or_make())
        return self._key

    async def _read_or_make(self) -> Object:
        secret = await self._kube.get(SECRET, self._secret_name)
        if secret is not None:
            return secret
        try:
            made = await self._kube.create(SECRET, self._manifest())
        except Conflict:
            # Another process was faster; its key is as good.
            return await self._kube.get(SECRET, self._secret_name) or {}
        _log.info("created Secret %s, from which Ray's tokens are derived", self._secret_name)
        return made

    def _manifest(self) -> dict[str, Any]:
        return {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.name,
            "metadata": {
                "name": self._secret_name.name,
                "namespace": self._secret_name.namespace,
                "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER},
            },
            "type": "Opaque",
            "immutable": True,
            "data": {_FIELD: base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()},
        }

    def _key_in(self, secret: Mapping[str, Any]) -> bytes:
        text = (secret.get("data") or {}).get(_FIELD) or ""
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            key = b""
        if len(key) < KEY_BYTES:
            raise Refused(
                f"Secret {self._secret_name} has no '{_FIELD}' of {KEY_BYTES} bytes or more; "
                "delete it, and the operator creates another"
            )
        return key
