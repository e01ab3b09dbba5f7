"""`tandem export keda`: YAML on standard output or in a file, or one sentence."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.operator.commands.api_server import ApiServer, run

NAMESPACED = "/apis/serving.tandem.dev/v1alpha1/namespaces/demo/inferenceservices"

pytestmark = pytest.mark.usefixtures("kubeconfig")


def isvc(mode: str = "External") -> dict[str, Any]:
    return {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny", "namespace": "demo"},
        "spec": {
            "model": {"source": "pvc://models/tiny"},
            "slo": {"ttft": {"target": "1.5s"}},
            "scaling": {"mode": mode, "maxReplicas": 4},
        },
    }


def test_the_document_is_printed(server: ApiServer) -> None:
    server.lists[NAMESPACED] = [isvc()]

    done = run("export", "keda", "tiny", "-n", "demo", "--prometheus", "http://p:9090")

    assert done.exit_code == 0
    document = yaml.safe_load(done.stdout)
    assert document["kind"] == "ScaledObject"
    assert document["metadata"] == {"name": "tiny", "namespace": "demo"}
    assert document["spec"]["triggers"][0]["metadata"]["serverAddress"] == "http://p:9090"


def test_the_document_is_written(server: ApiServer, tmp_path: Path) -> None:
    server.lists[NAMESPACED] = [isvc()]
    file = tmp_path / "keda.yaml"

    done = run("export", "keda", "tiny", "-n", "demo", "-o", str(file))

    assert (done.exit_code, done.stdout) == (0, "")
    assert yaml.safe_load(file.read_text())["kind"] == "ScaledObject"


@pytest.mark.parametrize(
    ("mode", "option", "said"),
    [
        ("Auto", [], "mode Auto, in which the number has another owner than KEDA"),
        ("External", ["--prometheus", "p:9090"], "--prometheus p:9090 is no URL"),
        ("External", ["-o", "/nowhere/keda.yaml"], "--output /nowhere/keda.yaml cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(
    server: ApiServer, mode: str, option: list[str], said: str
) -> None:
    server.lists[NAMESPACED] = [isvc(mode)]

    done = run("export", "keda", "tiny", "-n", "demo", *option)

    assert done.exit_code == 1
    assert said in done.stderr
