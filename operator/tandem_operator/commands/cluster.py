"""Reads of the commands from a Kubernetes, with errors as sentences."""

import difflib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final, Self

from tandem_operator.commands.api_reader import ApiReader, Refusal
from tandem_operator.commands.errors import ClusterError
from tandem_operator.k8s.kinds import EVENT, INFERENCE_SERVICE, POD, RAY_SERVICE, Kind
from tandem_operator.k8s.objects import Object, selector_text

EVERYWHERE: Final = "*"
_PAGE: Final = 500
_BETWEEN_WATCHES_S: Final = 1.0


class Cluster:
    """A Kubernetes as the commands read it."""

    def __init__(self, reader: ApiReader) -> None:
        self._reader = reader

    @classmethod
    def connect(cls, context: str | None) -> Self:
        """Connect to the kubeconfig's context, or to the Kubernetes of this pod.

        Raises:
            NoCluster: there is none.
        """
        return cls(ApiReader(context))

    @property
    def namespace(self) -> str:
        """Default namespace of the context."""
        return self._reader.namespace

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
        ray_services = self._list_if_possible(RAY_SERVICE, namespace)
        return next(
            (
                ray_service
                for ray_service in ray_services
                if ray_service["metadata"]["name"] == name
            ),
            None,
        )

    def pods(self, labels: Mapping[str, str], namespace: str) -> list[Object]:
        """List the pods with these labels; none where they may not be read."""
        return self._list_if_possible(POD, namespace, labels)

    def events(self, namespace: str) -> list[Object]:
        """List the Events of a namespace; none where they may not be read."""
        return self._list_if_possible(EVENT, namespace)

    def changes(self, namespace: str) -> Iterator[Object]:
        """Yield the InferenceServices of a namespace, or EVERYWHERE, each whenever it changes.

        All existing ones come first, and once more when the API server has forgotten the version
        that the watch had reached (410). It never ends by itself.

        Raises:
            ClusterError: they cannot be watched.
        """
        path = _path(INFERENCE_SERVICE, namespace)
        while True:
            with self._errors(INFERENCE_SERVICE):
                items, version = self._read_list(path, {})
            yield from items
            with self._errors(INFERENCE_SERVICE):
                yield from self._changes_since(version, path)
            time.sleep(_BETWEEN_WATCHES_S)

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
        query = {}
        if labels:
            query["labelSelector"] = selector_text(labels)
        with self._errors(kind):
            return self._read_list(_path(kind, namespace), query)[0]

    def _read_list(self, path: str, query: Mapping[str, str]) -> tuple[list[Object], str]:
        """Return the objects of a list, read page by page, and their resource version."""
        try:
            return self._read_pages(path, {**query, "limit": str(_PAGE)})
        except Refusal as refusal:
            if refusal.code != HTTPStatus.GONE:
                raise
            # The pages that were left have expired; a list without pages does not.
            return self._read_pages(path, query)

    def _read_pages(self, path: str, query: Mapping[str, str]) -> tuple[list[Object], str]:
        items: list[Object] = []
        rest = ""
        while True:
            page = self._reader.list_page(path, {**query, "continue": rest} if rest else query)
            items += page.get("items") or ()
            metadata = page.get("metadata") or {}
            rest = metadata.get("continue", "")
            if not rest:
                return items, metadata.get("resourceVersion", "")

    def _changes_since(self, version: str, path: str) -> Iterator[Object]:
        """Yield each object that changes, until the API server has forgotten that version."""
        while True:
            query = {"resourceVersion": version, "allowWatchBookmarks": "true"}
            try:
                for event in self._reader.watch(path, query):
                    item = _object_of(event)
                    version = item["metadata"].get("resourceVersion", version)
                    if event["type"] != "BOOKMARK":
                        yield item
            except Refusal as refusal:
                if refusal.code != HTTPStatus.GONE:
                    raise
                return
            # The API server ends each watch after some minutes; a broken proxy, at once.
            time.sleep(_BETWEEN_WATCHES_S)

    @contextmanager
    def _errors(self, kind: Kind) -> Iterator[None]:
        try:
            yield
        except Refusal as refusal:
            raise ClusterError(self._sentence(refusal, kind)) from refusal

    def _sentence(self, refusal: Refusal, kind: Kind) -> str:
        message, server = str(refusal), self._reader.server
        match refusal.code:
            case HTTPStatus.NOT_FOUND:
                return (
                    f"the Kubernetes at {server} serves no {kind.name}; "
                    "install Tandem there (helm install tandem charts/tandem), or name another "
                    "Kubernetes with --context"
                )
            case HTTPStatus.UNAUTHORIZED:
                return (
                    f"the Kubernetes at {server} does not know you "
                    f"({message}); log in to it again, or name another user's "
                    "context with --context"
                )
            case HTTPStatus.FORBIDDEN:
                return (
                    f"you may not do this: {message}; ask for the role 'view' in the "
                    "namespace, or name one where you have it with -n"
                )
        return f"the Kubernetes at {server} answers: {message}"

    def _no_such_service(self, name: str, namespace: str) -> str:
        try:
            everything = self.services(EVERYWHERE)
        except ClusterError:
            everything = self.services(namespace)
        elsewhere = [_key(isvc)[0] for isvc in everything if _key(isvc)[1] == name]
        if elsewhere:
            return (
                f"there is no service '{name}' in namespace {namespace}; there is one in "
                f"{' and '.join(elsewhere)}: add -n {elsewhere[0]}"
            )
        names = [_key(isvc)[1] for isvc in everything if _key(isvc)[0] == namespace]
        return f"there is no service '{name}' in namespace {namespace}; {_instead(name, names)}"


def _path(kind: Kind, namespace: str) -> str:
    return kind.path(None if namespace == EVERYWHERE else namespace)


def _object_of(event: Mapping[str, Any]) -> Object:
    """Return the object of a watch's event.

    Raises:
        Refusal: the event is an error.
    """
    item: Object = event["object"]
    if event["type"] == "ERROR":
        raise Refusal(int(item.get("code") or 0), str(item.get("message") or "an error"))
    return item


def _instead(name: str, names: Iterable[str]) -> str:
    known = list(names)
    if near := difflib.get_close_matches(name, known, n=1):
        return f"did you mean '{near[0]}'?"
    if known:
        return f"available: {', '.join(known)}"
    return "there are none: create one with kubectl apply -f FILE"


def _key(service: Object) -> tuple[str, str]:
    return service["metadata"]["namespace"], service["metadata"]["name"]
