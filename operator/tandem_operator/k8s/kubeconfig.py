"""Connection to the API server: from the pod's service account, or from a kubeconfig."""

import os
import ssl

from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError


class NoCluster(Exception):
    """No Kubernetes can be reached from here; the text is one sentence."""


def cluster_config(context: str | None) -> SingleConfig:
    """Return the connection of the pod's service account, or of a kubeconfig's context.

    Raises:
        NoCluster: there is neither, or the context is not in the kubeconfig.
    """
    path = os.environ.get("KUBECONFIG", DEFAULT_KUBECONFIG)
    try:
        config = KubeConfig.from_file(path) if context else KubeConfig.from_env()
        found = config.get(context)
    except (ConfigError, KeyError) as error:
        raise NoCluster(
            f"no Kubernetes is configured here ({error}); "
            "run in a pod, set KUBECONFIG, or name a context that it has with --context"
        ) from None
    if found is None:
        raise NoCluster(f"{path} has no current context; name one with --context")
    if found.user and (found.user.exec or found.user.auth_provider):
        raise NoCluster(
            f"context '{found.context_name}' logs in with a plugin, which the operator does not; "
            "use one with a token (kubectl create token) or a certificate"
        )
    return found._replace(user=user_of(found))


def user_of(config: SingleConfig) -> User:
    """Return the user of the context; one without a user is anonymous."""
    return config.user or User()


def tls_of(config: SingleConfig) -> ssl.SSLContext:
    """Return the TLS context: the API server's authority and the user's certificate.

    Raises:
        NoCluster: they cannot be used.
    """
    try:
        return verify_cluster(config.cluster, user_of(config), config.abs_file)
    except (OSError, ValueError) as error:
        raise NoCluster(
            f"the certificates of context '{config.context_name}' cannot be used: {error}"
        ) from error
