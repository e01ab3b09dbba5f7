"""Errors on the way to a Kubernetes, in one sentence each, and the reads there.

The API server is a stand-in that answers with a few lists; what a real one answers is seen in
tests/integration/operator.
"""

import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.operator.commands.api_server import (
    SERVICES,
    ApiServer,
    error_of,
    failure,
    of_namespace,
    page,
    run,
    service,
    write_kubeconfig,
)


def test_without_a_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    assert error_of("get").startswith("no Kubernetes is configured here (")
    assert "set KUBECONFIG" in error_of("explain", "tiny")


def test_a_file_that_is_no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    monkeypatch.setenv("KUBECONFIG", str(broken))

    for text in ("a: [", "", "clusters: []", "[]"):
        broken.write_text(text)
        assert error_of("get").startswith(f"{broken} is not a kubeconfig (")


def test_the_first_kubeconfig_that_is_there_counts(
    monkeypatch: pytest.MonkeyPatch, server: ApiServer, kubeconfig: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", f"/nowhere/config:{kubeconfig}")
    server.lists[of_namespace("models")] = [service("tiny")]

    assert "tiny" in run("get").stdout


@pytest.mark.usefixtures("kubeconfig")
def test_a_context_that_is_not_there(kubeconfig: Path) -> None:
    assert error_of("get", "--context", "hom") == (
        f"there is no context 'hom' in {kubeconfig}; did you mean 'home'?"
    )
    assert error_of("get", "--context", "x").endswith("; available: home")


def test_a_kubernetes_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", url)))

        said = error_of("get")

    assert said.startswith(f"the Kubernetes at {url} does not answer (")
    assert "--context" in said


@pytest.mark.usefixtures("kubeconfig")
def test_a_kubernetes_without_tandem(server: ApiServer) -> None:
    assert error_of("get") == (
        f"the Kubernetes at {server.url} serves no InferenceService; install Tandem there "
        "(helm install tandem charts/tandem), or name another Kubernetes with --context"
    )


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (401, "does not know you (who are you?); log in to it again"),
        (403, "you may not do this: who are you?; ask for the role 'view'"),
        (500, "answers: who are you?"),
    ],
)
def test_a_kubernetes_that_refuses(server: ApiServer, code: int, words: str) -> None:
    server.refusals[of_namespace("models")] = (code, "who are you?")

    assert words in error_of("get")


@pytest.mark.usefixtures("kubeconfig")
def test_a_service_that_is_not_there(server: ApiServer) -> None:
    server.lists[of_namespace("models")] = [service("tiny")]
    server.lists[SERVICES] = [service("tiny"), service("big", "team-a")]

    assert error_of("explain", "tini") == (
        "there is no service 'tini' in namespace models; did you mean 'tiny'?"
    )
    assert error_of("explain", "xyz").endswith("; available: tiny")
    assert error_of("explain", "big") == (
        "there is no service 'big' in namespace models; there is one in team-a: add -n team-a"
    )


@pytest.mark.usefixtures("kubeconfig")
def test_a_namespace_without_services(server: ApiServer) -> None:
    server.lists[of_namespace("models")] = []
    server.refusals[SERVICES] = (403, "no")

    done = run("get")

    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "No services in models.\n"
    assert error_of("explain", "tiny").endswith("create one with kubectl apply -f FILE")


@pytest.mark.usefixtures("kubeconfig")
def test_the_services_of_every_namespace(server: ApiServer) -> None:
    server.lists[SERVICES] = [service("tiny"), service("big", "team-a")]

    head, *rows = run("get", "-A").stdout.splitlines()

    assert head.split()[:3] == ["NAMESPACE", "NAME", "READY"]
    assert [row.split()[:2] for row in rows] == [["models", "tiny"], ["team-a", "big"]]


@pytest.mark.usefixtures("kubeconfig")
def test_watching_shows_what_changes_once(server: ApiServer) -> None:
    tiny = service("tiny")
    ready = tiny | {"status": {"reason": "Serving", "model": "m"}}
    added, modified = {"type": "ADDED", "object": tiny}, {"type": "MODIFIED", "object": ready}
    # The API server forgets where the watch was, lists what is there, and fails for good.
    server.pages = [page([tiny]), page([tiny]), page([ready])]
    server.watched = [[added, modified, failure(410)], [modified, failure(500)]]

    done = run("get", "-w")

    _, first, second = done.stdout.splitlines()
    assert "Serving" not in first
    assert "Serving" in second
    assert done.exit_code == 1


@pytest.mark.usefixtures("kubeconfig")
def test_what_may_not_be_read_is_left_out_of_an_explanation(server: ApiServer) -> None:
    server.lists[of_namespace("models")] = [service("tiny")]

    said = run("explain", "tiny").stdout.splitlines()

    assert [line.partition(":")[0] for line in said] == [
        "state",
        "replicas",
        "change",
        "in the way",
        "next",
        "memory",
    ]
    assert "The operator seems not to run" in said[3]
