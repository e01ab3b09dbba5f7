"""A kubeconfig's user → its credentials, with the help of its login plugin where it has one.

The client's own loader logs a plugin's failure, and goes on as an anonymous user.
"""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkstemp
from typing import Any, Final

from kubernetes.config import ConfigException
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import ConfigNode

from tandem_operator.k8s.kubeconfig import Context, Fields, NoCluster

_LOGINS: Final = frozenset({"exec", "auth-provider", "token", "tokenFile"})
_INLINE: Final = "-data"


def loadable(context: Context, user: Fields, folder: Path) -> dict[str, Any]:
    """Return a kubeconfig of this context alone, which the client's loader takes as it is.

    Its inline certificates and keys are files of `folder` then.

    Raises:
        NoCluster: its server is no URL.
        ValueError: a certificate is not base64.
    """
    server = str(context.cluster.get("server", ""))
    if not server.startswith(("http://", "https://")):
        raise NoCluster(
            f"the server of context '{context.name}' is '{server}', which is not a URL; write "
            "https://HOST:PORT into the kubeconfig"
        )
    name = {"name": context.name}
    names = {"cluster": context.name, "user": context.name}
    return {
        "current-context": context.name,
        "contexts": [name | {"context": names}],
        "clusters": [name | {"cluster": _with_files(context.cluster, folder)}],
        "users": [name | {"user": _with_files(user, folder)}],
    }


def account_error(error: Exception) -> NoCluster:
    """Return the error of a pod's service account that cannot be used."""
    return NoCluster(
        f"this pod's service account cannot be used ({error}); set KUBECONFIG to a "
        "kubeconfig, and name its context with --context"
    )


def certificate_error(context: Context, error: Exception) -> NoCluster:
    """Return the error of a context whose certificates cannot be used."""
    return NoCluster(
        f"the certificates of context '{context.name}' cannot be used ({error}); renew its "
        "kubeconfig, or name another context with --context"
    )


def credentials(context: Context) -> Fields:
    """Return the context's user with a token or certificate in place of the way to get one.

    Raises:
        NoCluster: there is no way to get one.
    """
    fields = _found(context)
    token = str(fields.get("token", ""))
    if not (token.isascii() and token.isprintable()):
        # urllib3 would show it in its message.
        raise NoCluster(
            f"the token of context '{context.name}' has characters that HTTP does not take; log "
            "in again, or name another context with --context"
        )
    return fields


def _found(context: Context) -> Fields:
    user = context.user
    rest: dict[str, Any] = {key: value for key, value in user.items() if key not in _LOGINS}
    if token := _token(context):
        return rest | {"token": token}
    if "exec" in user:
        return rest | _from_plugin(context)
    if "auth-provider" in user:
        raise NoCluster(
            f"context '{context.name}' logs in with auth-provider "
            f"'{user['auth-provider'].get('name')}', which is not supported; use a login plugin "
            "(users[].user.exec) or a token in the kubeconfig"
        )
    return rest


def _token(context: Context) -> str:
    """Return the token in the kubeconfig or in the file that it names; empty: there is none."""
    if "tokenFile" not in context.user:
        return str(context.user.get("token", ""))
    try:
        return Path(context.user["tokenFile"]).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise NoCluster(
            f"the token of context '{context.name}' cannot be read ({error}); correct tokenFile in "
            "the kubeconfig, or name another context with --context"
        ) from None


def _from_plugin(context: Context) -> dict[str, str]:
    status = _run_plugin(context)
    fields = {
        "token": str(status.get("token") or ""),
        "client-certificate-data": _base64(status.get("clientCertificateData")),
        "client-key-data": _base64(status.get("clientKeyData")),
    }
    if not fields["token"] and not fields["client-key-data"]:
        raise _plugin_error(context, "its answer has neither a token nor a certificate with key")
    return {key: value for key, value in fields.items() if value}


def _run_plugin(context: Context) -> Mapping[str, Any]:
    """Run the plugin; it may ask its user, so there is no limit on its time."""
    try:
        provider = ExecProvider(
            ConfigNode("exec", context.user["exec"]),
            str(context.folder),
            ConfigNode("cluster", dict(context.cluster)),
        )
        status: Mapping[str, Any] = dict(provider.run())
    except FileNotFoundError:
        hint = context.user["exec"].get("installHint") or "install it"
        raise _plugin_error(context, f"it is not installed: {hint}") from None
    except AttributeError:
        # ExecProvider raises it on a terminal, where the plugin's stderr is not captured.
        raise _plugin_error(context, "its own message is above") from None
    except (ConfigException, OSError, LookupError, TypeError, ValueError) as error:
        raise _plugin_error(context, str(error).removeprefix("exec: ")) from None
    return status


def _plugin_error(context: Context, cause: str) -> NoCluster:
    plugin = context.user["exec"]
    name = plugin.get("command") if isinstance(plugin, Mapping) else plugin
    return NoCluster(
        f"the login plugin '{name}' of context '{context.name}' fails ({cause}); log in as "
        "kubectl needs it, or name another context with --context"
    )


def _base64(text: str | None) -> str:
    return base64.b64encode(text.encode()).decode() if text else ""


def _with_files(fields: Fields, folder: Path) -> Fields:
    """Return a cluster or user whose inline certificates and keys are files of `folder`.

    OpenSSL reads private keys from files alone. The client's loader would write them too, but it
    remembers each file for the life of the process, and finds it gone at the second connection.

    Raises:
        ValueError: one is not base64.
    """
    written = {name: value for name, value in fields.items() if not name.endswith(_INLINE)}
    for name in fields.keys() - written.keys():
        descriptor, path = mkstemp(dir=folder)
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.b64decode(str(fields[name])))
        written[name.removesuffix(_INLINE)] = path
    return written
