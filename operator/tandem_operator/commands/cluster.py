"""Reads of the commands from a Kubernetes, with errors as sentences."""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self

import httpx2
import typer
from lightkube import Client
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, KubeConfig, SingleConfig
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.types import OnErrorAction, OnErrorResult
from yaml import YAMLError

from tandem_operator.k8s.kinds import EVENT, INFERENCE_SERVICE, POD, RAY_SERVICE, Kind
from tandem_operator.k8s.resources import resource_of

Object = Mapping[str, Any]
"""A Kubernetes object as JSON has it."""

EVERYWHERE: Final = "*"
_TIMEOUT_S: Final = 10.0
_KUBECONFIG: Final = "KUBECONFIG"


class ClusterError(Exception):
    """A command cannot continue; the text is one sentence with a way out."""


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn an error that the user can resolve into a sentence and exit code 1."""
    try:
        yield
    except ClusterError as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


class Cluster:
    """Client of a Kubernetes for the commands."""

    def __init__(self, config: SingleConfig) -> None:
        self._config = config
        self._client = Client(config, timeout=httpx2.Timeout(_TIMEOUT_S))

    @classmethod
    def connect(cls, context: str | None) -> Self:
        """Connect to the kubeconfig's context, or to the Kubernetes of this pod.

        Raises:
            ClusterError: there is none.
        """
        return cls(_config(context))

    @property
    def namespace(self) -> str:
        """Default namespace of the context."""
        return self._client.namespace or "default"

    def services(self, namespace: str) -> list[Object]:
        """List the InferenceServices of a namespace, or EVERYWHERE, by namespace and name.

        Raises:
            ClusterError: they cannot be read.
        """
        return sorted(self._list(INFERENCE_SERVICE, namespace), key=_key)

    def service(self, name: str, namespace: str) -> Object:
        """Return the InferenceService of this name.

        Raises:
            ClusterError: there is none, or it cannot be read.
        """
        for service in self.services(namespace):
            if service["metadata"]["name"] == name:
                return service
        raise ClusterError(self._no_such_service(name, namespace))

    def ray_service(self, name: str, namespace: str) -> Object | None:
        """Return the RayService of this name; None: there is none, or it may not be read."""
        found = self._list_if_possible(RAY_SERVICE, namespace)
        return next((one for one in found if one["metadata"]["name"] == name), None)

    def pods(self, labels: Mapping[str, str], namespace: str) -> list[Object]:
        """List the pods with these labels; none where they may not be read."""
        return self._list_if_possible(POD, namespace, labels)

    def events(self, namespace: str) -> list[Object]:
        """List the Events of a namespace; none where they may not be read."""
        return self._list_if_possible(EVENT, namespace)

    def changes(self, namespace: str) -> Iterator[Object]:
        """Yield the InferenceServices of a namespace, or EVERYWHERE, each whenever it changes.

        All existing ones come first. It never ends by itself.

        Raises:
            ClusterError: they cannot be watched.
        """
        with self._errors(INFERENCE_SERVICE):
            watched = self._client.watch(
                resource_of(INFERENCE_SERVICE), namespace=namespace, on_error=_on_watch_error
            )
            for _, item in watched:
                yield dict(item)

    def _list_if_possible(
        self, kind: Kind, namespace: str, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        try:
            return self._list(kind, namespace, labels)
        except ClusterError:
            return []

    def _list(
        self, kind: Kind, namespace: str, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        with self._errors(kind):
            found = self._client.list(
                resource_of(kind), namespace=namespace, labels=dict(labels or {})
            )
            return [dict(item) for item in found]

    @contextmanager
    def _errors(self, kind: Kind) -> Iterator[None]:
        try:
            yield
        except httpx2.HTTPStatusError as error:
            raise ClusterError(self._refusal(error, kind)) from error
        except (httpx2.HTTPError, OSError) as error:
            raise ClusterError(
                f"the Kubernetes at {self._config.cluster.server} does not answer ({error}); is it "
                "running, and is it the one you mean? --context names another"
            ) from error

    def _refusal(self, error: httpx2.HTTPStatusError, kind: Kind) -> str:
        message = _message(error)
        match _code(error):
            case HTTPStatus.NOT_FOUND:
                return (
                    f"the Kubernetes at {self._config.cluster.server} serves no {kind.name}; "
                    "install Tandem there (helm install tandem charts/tandem), or name another "
                    "Kubernetes with --context"
                )
            case HTTPStatus.UNAUTHORIZED:
                return (
                    f"the Kubernetes at {self._config.cluster.server} does not know you "
                    f"({message}); log in to it again, or name another user's "
                    "context with --context"
                )
            case HTTPStatus.FORBIDDEN:
                return (
                    f"you may not do this: {message}; ask for the role 'view' in the "
                    "namespace, or name one where you have it with -n"
                )
        return f"the Kubernetes at {self._config.cluster.server} answers: {message}"

    def _no_such_service(self, name: str, namespace: str) -> str:
        try:
            everything = self.services(EVERYWHERE)
        except ClusterError:
            everything = self.services(namespace)
        elsewhere = [_key(one)[0] for one in everything if _key(one)[1] == name]
        if elsewhere:
            return (
                f"there is no service '{name}' in namespace {namespace}; there is one in "
                f"{' and '.join(elsewhere)}: add -n {elsewhere[0]}"
            )
        names = [_key(one)[1] for one in everything if _key(one)[0] == namespace]
        return f"there is no service '{name}' in namespace {namespace}; {_instead(name, names)}"


def _code(error: httpx2.HTTPStatusError) -> int:
    # An error in the middle of a watch has a Status, and no response of its own.
    status = error.status if isinstance(error, ApiError) else None
    return status.code if status and status.code else error.response.status_code


def _message(error: httpx2.HTTPStatusError) -> str:
    # An answer that is not of Kubernetes' own making, such as an unknown path, is plain text.
    message = error.status.message if isinstance(error, ApiError) else None
    return message or error.response.reason_phrase


def _on_watch_error(error: Exception, _: int) -> OnErrorResult:
    """Restart the watch when its resource version has expired."""
    is_outdated = isinstance(error, httpx2.HTTPStatusError) and _code(error) == HTTPStatus.GONE
    return OnErrorResult(OnErrorAction.RETRY if is_outdated else OnErrorAction.RAISE)


def _instead(name: str, names: Iterable[str]) -> str:
    known = list(names)
    if near := difflib.get_close_matches(name, known, n=1):
        return f"did you mean '{near[0]}'?"
    if known:
        return f"available: {', '.join(known)}"
    return "there are none: create one with kubectl apply -f FILE"


def _config(context: str | None) -> SingleConfig:
    path = _kubeconfig()
    try:
        in_file = context is not None or _KUBECONFIG in os.environ
        config = KubeConfig.from_file(path) if in_file else KubeConfig.from_env()
        if context is not None and context not in config.contexts:
            raise ClusterError(_no_such_context(context, list(config.contexts), path))
        return _chosen(config.get(context), path)
    except ConfigError as error:
        raise ClusterError(
            f"no Kubernetes is configured here ({error}); set {_KUBECONFIG} to a kubeconfig, "
            "or run 'make up' for a Kubernetes of your own"
        ) from None
    except (YAMLError, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ClusterError(
            f"{path} is not a kubeconfig ({type(error).__name__}: {error}); set {_KUBECONFIG} to "
            "one that 'kubectl get nodes' works with"
        ) from None


def _kubeconfig() -> str:
    """Return the file to read. kubectl merges several; here the first that exists counts."""
    paths = os.environ.get(_KUBECONFIG, DEFAULT_KUBECONFIG).split(os.pathsep)
    return next((path for path in paths if Path(path).expanduser().is_file()), paths[0])


def _no_such_context(context: str, known: list[str], path: str) -> str:
    near = difflib.get_close_matches(context, known, n=1)
    instead = f"did you mean '{near[0]}'?" if near else f"available: {', '.join(known) or 'none'}"
    return f"there is no context '{context}' in {path}; {instead}"


def _chosen(config: SingleConfig | None, path: str) -> SingleConfig:
    if config is None:
        raise ClusterError(f"{path} has no current context; name one with --context")
    return config


def _key(service: Object) -> tuple[str, str]:
    return service["metadata"]["namespace"], service["metadata"]["name"]
