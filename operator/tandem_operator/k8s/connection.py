"""The connection to the API server: from the pod's service account, or from a kubeconfig."""

import asyncio
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import (
    ConfigException,
    load_incluster_config,
    load_kube_config_from_dict,
)

from tandem_operator.k8s.kubeconfig import Context, NoCluster, read_context
from tandem_operator.k8s.login import account_error, certificate_error, credentials, loadable
from tandem_operator.k8s.tls import take_tls

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CONNECTIONS: Final = 16
_TOKEN: Final = "BearerToken"  # noqa: S105  # the client's name of the header
_BETWEEN_LOGINS_S: Final = 10.0
_REDIRECTS: Final = range(300, 400)

Handler = Callable[[aiohttp.ClientRequest], Awaitable[aiohttp.ClientResponse]]


class LoginError(aiohttp.ClientError):
    """A request was not sent, or its answer is not the API server's; the text is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An API server, its login, and the default namespace."""

    configuration: Configuration
    tls: ssl.SSLContext
    namespace: str
    login: "Login"

    @property
    def server(self) -> str:
        """Base URL of the API server."""
        return str(self.configuration.host)

    def api_client(self) -> ApiClient:
        """Return a client; no request is sent yet."""
        self.configuration.connection_pool_maxsize = _CONNECTIONS
        self.configuration.client_session_kwargs = {
            # The environment's proxies lead out of the cluster, not to its API server.
            "trust_env": False,
            "middlewares": (self.login,),
        }
        client = ApiClient(self.configuration)
        client.rest_client.ssl_context = self.tls
        return client

    def session(self, response_class: type[aiohttp.ClientResponse]) -> aiohttp.ClientSession:
        """Return a session of aiohttp with the same login, for kopf."""
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self.tls),
            proxy=self.configuration.proxy,
            middlewares=(self.login,),
            response_class=response_class,
        )


async def connect(context: str | None) -> Connection:
    """Return the connection of the pod's service account, or of a kubeconfig's context.

    Raises:
        NoCluster: there is neither, or it cannot be used.
    """
    if context is None and is_in_pod():
        return _of_account()
    return await _of_context(read_context(context))


def is_in_pod() -> bool:
    """Return True when this process runs in a pod."""
    return "KUBERNETES_SERVICE_HOST" in os.environ


def _of_account() -> Connection:
    configuration = Configuration()
    try:
        load_incluster_config(configuration)
        namespace = _NAMESPACE_FILE.read_text(encoding="ascii").strip()
        tls = take_tls(configuration)
    except (ConfigException, OSError, ValueError) as error:
        raise account_error(error) from None
    login = Login(configuration)
    return Connection(configuration=configuration, tls=tls, namespace=namespace, login=login)


async def _of_context(context: Context) -> Connection:
    configuration = Configuration()
    user = await asyncio.to_thread(credentials, context)
    try:
        with TemporaryDirectory(prefix="tandem-") as folder:
            document = loadable(context, user, Path(folder))
            await load_kube_config_from_dict(document, client_configuration=configuration)
            tls = take_tls(configuration)
    except (ConfigException, OSError, ValueError, TypeError) as error:
        raise certificate_error(context, error) from None
    return Connection(
        configuration=configuration,
        tls=tls,
        namespace=context.namespace,
        login=Login(configuration, context),
    )


@dataclass(slots=True)
class Login:
    """Middleware of aiohttp: adds the user's token to each request.

    A context's token is read again when it is no longer taken: a file may have changed, and the
    token of a plugin expires. A redirect is not followed, as it would carry the token elsewhere.
    """

    configuration: Configuration
    context: Context | None = None
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _last: float = field(default=-_BETWEEN_LOGINS_S, init=False)

    async def __call__(
        self,
        request: aiohttp.ClientRequest,
        handler: Handler,
    ) -> aiohttp.ClientResponse:
        """Send a request."""
        await self._authorize(request)
        response = await handler(request)
        if response.status == HTTPStatus.UNAUTHORIZED:
            response = await self._retry(request, handler, response)
        if response.status in _REDIRECTS:
            response.release()
            raise LoginError(f"it redirects to {response.headers.get('Location', 'nowhere')}")
        return response

    async def _retry(
        self, request: aiohttp.ClientRequest, handler: Handler, refused: aiohttp.ClientResponse
    ) -> aiohttp.ClientResponse:
        """Send a request again with another token; without one, return the answer `refused`."""
        try:
            has_other = await self._log_in_again(request.headers.get("Authorization", ""))
        except LoginError:
            refused.release()
            raise
        if not has_other:
            return refused
        refused.release()
        await self._authorize(request)
        return await handler(request)

    async def _authorize(self, request: aiohttp.ClientRequest) -> None:
        if self.configuration.tls_server_name:
            request.server_hostname = self.configuration.tls_server_name
        try:
            token = await self.configuration.get_api_key_with_prefix(_TOKEN)
        except (ConfigException, OSError) as error:
            raise LoginError(f"the service account's token cannot be read: {error}") from error
        if token:
            request.headers["Authorization"] = token.strip()

    async def _log_in_again(self, refused: str) -> bool:
        """Read the context's token again; False: there is none but the one that was refused."""
        async with self._lock:
            if self.configuration.api_key.get(_TOKEN, "") != refused:
                # Another request has logged in meanwhile.
                return self.context is not None
            if self.context is None or time.monotonic() < self._last + _BETWEEN_LOGINS_S:
                return False
            self._last = time.monotonic()
            try:
                user = await asyncio.to_thread(credentials, self.context)
            except NoCluster as error:
                raise LoginError(str(error)) from error
            token = f"Bearer {user['token']}" if "token" in user else refused
            if token == refused:
                return False
            self.configuration.api_key[_TOKEN] = token
            return True
