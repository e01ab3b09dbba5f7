"""Contexts of kubeconfigs, which are merged as kubectl merges them.

The client's own merger takes the last file's current context, and looks for a user's files beside
the cluster's file.
"""

import difflib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from tandem_serve.api.yaml_text import read_documents

Fields = Mapping[str, Any]
"""Fields of a cluster, user or context of a kubeconfig."""

KUBECONFIG: Final = "KUBECONFIG"
"""Environment variable that names the files."""

_DEFAULT: Final = "~/.kube/config"
_FILES: Final = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class NoCluster(Exception):
    """No Kubernetes can be reached from here; the text is one sentence with a way out."""


@dataclass(frozen=True, slots=True)
class Context:
    """A cluster, its user, and the default namespace."""

    name: str
    cluster: Fields
    user: Fields
    namespace: str
    folder: Path
    """Folder of the user's kubeconfig: login plugins run there."""


def read_context(name: str | None) -> Context:
    """Return the context of this name from the kubeconfigs; None: the current one.

    Raises:
        NoCluster: there is none, or they cannot be read.
    """
    paths = _paths()
    with _errors(os.pathsep.join(paths)):
        return _Merged.of(paths).context(name)


@dataclass(slots=True)
class _Merged:
    """Entries of all files, each with the folder of its file; the first of a name counts."""

    files: str
    current: str = ""
    clusters: dict[str, tuple[Fields, Path]] = field(default_factory=dict)
    users: dict[str, tuple[Fields, Path]] = field(default_factory=dict)
    contexts: dict[str, tuple[Fields, Path]] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: list[str]) -> Self:
        merged = cls(os.pathsep.join(paths))
        for path in paths:
            with _errors(path):
                merged._add(Path(path).expanduser().absolute())
        if not merged.contexts:
            raise ValueError("it has no contexts")
        return merged

    def context(self, name: str | None) -> Context:
        name = name or self.current
        if not name:
            raise NoCluster(
                f"{self.files} has no current context; name one with --context, "
                f"available: {', '.join(self.contexts)}"
            )
        if name not in self.contexts:
            raise NoCluster(_no_such_context(name, list(self.contexts), self.files))
        context, _ = self.contexts[name]
        cluster, _ = _named(self.clusters, "cluster", context.get("cluster", ""), name)
        user: tuple[Fields, Path] = ({}, Path())
        if context.get("user"):
            user = _named(self.users, "user", context["user"], name)
        return Context(name, cluster, user[0], context.get("namespace") or "default", user[1])

    def _add(self, path: Path) -> None:
        document = _document(path.read_text(encoding="utf-8"))
        # The first file that has one counts.
        self.current = self.current or document.get("current-context") or ""
        for kind, known in (
            ("cluster", self.clusters),
            ("user", self.users),
            ("context", self.contexts),
        ):
            for item in document.get(f"{kind}s") or ():
                entry = _entry(item[kind] or {}, path.parent)
                known.setdefault(str(item["name"]), (entry, path.parent))


def _document(text: str) -> Fields:
    document, *others = read_documents(text) or [{}]
    if others:
        raise ValueError(f"it has {1 + len(others)} documents; keep one")
    fields: Fields = document
    return fields


def _entry(entry: Fields, folder: Path) -> Fields:
    """Return the entry without empty fields, its files with absolute paths."""
    return {
        key: str(folder / Path(value).expanduser()) if key in _FILES else value
        for key, value in entry.items()
        if value not in (None, "")
    }


def _named(
    known: Mapping[str, tuple[Fields, Path]], kind: str, name: str, context: str
) -> tuple[Fields, Path]:
    if name not in known:
        raise ValueError(f"context '{context}' names {kind} '{name}', which is not in it")
    return known[name]


def _paths() -> list[str]:
    """Return the kubeconfigs that exist.

    Raises:
        NoCluster: there is none.
    """
    names = os.environ.get(KUBECONFIG) or _DEFAULT
    paths = [name for name in names.split(os.pathsep) if name]
    with _errors(names):
        files = [path for path in paths if Path(path).expanduser().is_file()]
    if not files:
        raise NoCluster(
            f"no Kubernetes is configured here (Configuration file {names} not found); set "
            f"{KUBECONFIG} to a kubeconfig, or run 'make up' for a Kubernetes of your own"
        )
    return files


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise NoCluster(
            f"{path} is not a kubeconfig ({type(error).__name__}: {error}); set {KUBECONFIG} to "
            "one that 'kubectl get nodes' works with"
        ) from None


def _no_such_context(context: str, known: list[str], path: str) -> str:
    near = difflib.get_close_matches(context, known, n=1)
    instead = f"did you mean '{near[0]}'?" if near else f"available: {', '.join(known)}"
    return f"there is no context '{context}' in {path}; {instead}"
