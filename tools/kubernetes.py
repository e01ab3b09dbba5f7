"""A Kubernetes to install into, through kubectl and helm: a throw-away one, or the user's own."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from tools.cluster import Cluster

CURRENT: Final = "current"
"""In place of a context's name: the one that kubectl points at."""


class CommandFailed(Exception):
    """A command failed; the text says which, and what it said."""


@dataclass(frozen=True)
class Kubernetes:
    """An API server, and the programs that speak to it."""

    kubectl_path: str
    helm_path: str
    environment: Mapping[str, str]
    context: str | None = None
    """Context of the user's kubeconfig; None: the kubeconfig has only one."""

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Self:
        """A throw-away cluster."""
        return cls(
            kubectl_path=str(cluster.bin_dir / "kubectl"),
            helm_path=str(cluster.bin_dir / "helm"),
            environment=cluster.environment,
        )

    @classmethod
    def of_context(cls, context: str) -> Self:
        """A cluster of the user's, by the name of its context.

        Raises:
            CommandFailed: kubectl or helm is missing, or the cluster does not answer.
        """
        kubernetes = cls(
            kubectl_path=_program("kubectl"),
            helm_path=_program("helm"),
            environment=os.environ,
            context=None if context == CURRENT else context,
        )
        kubernetes.kubectl("get", "--raw", "/readyz", "--request-timeout=10s")
        return kubernetes

    def kubectl(self, *arguments: str, document: Any = None) -> str:
        """Run kubectl and return its output; `document` is its standard input, as JSON.

        Raises:
            CommandFailed: it fails.
        """
        chosen = [] if self.context is None else [f"--context={self.context}"]
        given = None if document is None else json.dumps(document)
        return self._run([self.kubectl_path, *chosen, *arguments], given)

    def helm(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """Run helm and return its output; `--values -` reads `values` from its standard input.

        Raises:
            CommandFailed: it fails.
        """
        chosen = [] if self.context is None else [f"--kube-context={self.context}"]
        given = None if values is None else json.dumps(values)
        read = [] if values is None else ["--values", "-"]
        return self._run([self.helm_path, *chosen, *arguments, *read], given)

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object of the current namespace; None: it is not there."""
        text = self.kubectl("get", kind, name, "--output=json", "--ignore-not-found")
        document: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return document

    def list(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        """The objects of the current namespace that a label selector selects; all without one."""
        text = self.kubectl("get", kind, f"--selector={selector}", "--output=json")
        items: list[dict[str, Any]] = json.loads(text)["items"]
        return items

    def apply(self, document: Mapping[str, Any]) -> None:
        """`kubectl apply`."""
        self.kubectl("apply", "--filename=-", document=document)

    def has_kind(self, kind: str) -> bool:
        """Return True when the API server serves a kind, such as rayservices.ray.io."""
        names = self.kubectl("get", "crds", "--output=name").split()
        return f"customresourcedefinition.apiextensions.k8s.io/{kind}" in names

    def _run(self, command: Sequence[str], given: str | None) -> str:
        done = subprocess.run(
            command,
            env=self.environment,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.strip() or done.stdout.strip()
            raise CommandFailed(f"{Path(command[0]).name} {_verb(command)}: {said}")
        return done.stdout


def python_folders() -> tuple[Path, Path]:
    """The virtual environment that runs this, and the home of the interpreter below it."""
    return Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()


def _verb(command: Sequence[str]) -> str:
    words = [word for word in command[1:] if not word.startswith("-")]
    return " ".join(words[:2])


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise CommandFailed(
            f"{name} is not on the PATH, and a cluster of yours is reached with it; install it, "
            "or unset TANDEM_CONTEXT for a throw-away cluster that brings its own"
        )
    return path
