"""Access to an API server: address, credentials, TLS and proxy as kubectl would have them."""

import os
import ssl
import urllib.parse
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, Self

import urllib3
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.rest import is_socks_proxy_url
from kubernetes.config import ConfigException, incluster_config, load_kube_config_from_dict

from tandem_operator.k8s.kubeconfig import KUBECONFIG, Context, NoCluster, read_context
from tandem_operator.k8s.login import account_error, certificate_error, credentials, loadable
from tandem_operator.k8s.tls import take_tls

# kubectl reaches these past every proxy of the environment.
_LOOPBACK: Final = ("localhost", "127.0.0.0/8", "::1")


class Access(NamedTuple):
    """A client with its credentials, and the default namespace."""

    client: ApiClient
    namespace: str

    @classmethod
    def of(cls, context: str | None) -> Self:
        """Return the access of a kubeconfig's context, or of this pod's service account.

        Raises:
            NoCluster: there is none.
        """
        # KUBECONFIG counts in a pod, too: a person in its shell means it, while the operator has
        # rights of its own there (k8s/connection.py).
        account = Path(incluster_config.SERVICE_TOKEN_FILENAME)
        if context is None and not os.environ.get(KUBECONFIG) and account.is_file():
            return cls._of_account(account.with_name("namespace"))
        return cls._of_context(read_context(context))

    @property
    def proxy(self) -> str:
        """Address of the proxy, without its credentials; empty: there is none."""
        proxy = self.client.configuration.proxy
        return urllib3.util.parse_url(proxy).netloc or "" if proxy else ""

    @classmethod
    def _of_account(cls, namespace: Path) -> Self:
        configuration = _configuration()
        try:
            incluster_config.load_incluster_config(configuration)
            tls = _take_tls(configuration)
            name = namespace.read_text(encoding="utf-8").strip()
        except (ConfigException, OSError, ValueError) as error:
            raise account_error(error) from None
        _exempt_loopback(configuration)
        return cls(_client(configuration, tls), name)

    @classmethod
    def _of_context(cls, context: Context) -> Self:
        configuration = _configuration()
        tls = _load(configuration, context)
        if "proxy-url" in context.cluster:
            # Unlike a proxy of the environment, it is for every host.
            configuration.no_proxy = None
        else:
            _exempt_loopback(configuration)
        return cls(_client(configuration, tls), context.namespace)


def _configuration() -> Configuration:
    configuration = Configuration()
    # Neither retried nor redirected: another host would get to know the user.
    configuration.retries = False
    # A firewall that drops idle connections ends a watch without a word.
    configuration.keep_alive = True
    return configuration


def _load(configuration: Configuration, context: Context) -> ssl.SSLContext:
    """Fill in the context's address and credentials, and return its TLS.

    Raises:
        NoCluster: they cannot be used.
    """
    user = credentials(context)
    try:
        # The files are gone as soon as they are read, and not only when the command ends.
        with TemporaryDirectory(prefix="tandem-") as folder:
            document = loadable(context, user, Path(folder))
            load_kube_config_from_dict(document, client_configuration=configuration)
            return _take_tls(configuration)
    except (ConfigException, OSError, ValueError, TypeError) as error:
        raise certificate_error(context, error) from None


def _take_tls(configuration: Configuration) -> ssl.SSLContext:
    if not configuration.verify_ssl:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return take_tls(configuration)


def _exempt_loopback(configuration: Configuration) -> None:
    configuration.no_proxy = ",".join((configuration.no_proxy or "", *_LOOPBACK))


def _client(configuration: Configuration, tls: ssl.SSLContext) -> ApiClient:
    proxy = configuration.proxy
    if proxy and is_socks_proxy_url(proxy) and find_spec("socks") is None:
        raise NoCluster(
            "this Kubernetes is behind a SOCKS proxy, which needs a package: pip install pysocks"
        )
    if proxy and (user := urllib3.util.parse_url(proxy).auth):
        # urllib3 itself does not send what a proxy's URL has.
        configuration.proxy_headers = urllib3.make_headers(
            proxy_basic_auth=urllib.parse.unquote(user)
        )
    client = ApiClient(configuration)
    client.rest_client.pool_manager.connection_pool_kw["ssl_context"] = tls
    return client
