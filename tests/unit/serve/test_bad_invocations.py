"""Every command with input that cannot be: one sentence and a code, never a traceback."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tandem_serve import cli

TINY = Path(__file__).parents[3] / "examples" / "tandem-tiny"
HEAD = "apiVersion: serving.tandem.dev/v1alpha1\nkind: InferenceService\nmetadata: {name: tiny}\n"
SPEC = f"model: {{source: 'file://{TINY}'}}"
BERLN = "{start: 0 8 * * *, duration: 1h, minReplicas: 1, timeZone: Europe/Berln}"
MANIFESTS: dict[str, str | bytes] = {
    "nested": "[" * 5000 + "]" * 5000,
    "nested below spec": f"{HEAD}spec: {'{a: ' * 5000}{'}' * 5000}",
    "a long number": f"{HEAD}spec: {{{SPEC}, scaling: {{replicas: {'9' * 5000}}}}}",
    "a key null": f"{HEAD}spec: {{{SPEC}, null: 1}}",
    "no date": "a: 2024-13-45",
    "a wrong tag": "a: !!bool maybe",
    "a half of a pair": HEAD + r'spec: {model: {source: "./\uD800"}}',
    "a NUL": HEAD + r'spec: {model: {source: "./\0"}}',
    "no UTF-8": b"\xff\xfe\xff",
    "an unknown architecture": f"{HEAD}spec: {{model: {{source: ./mamba}}}}",
    "no tokenizer": f"{HEAD}spec: {{model: {{source: ./mute}}}}",
    "an unknown time zone": f"{HEAD}spec: {{{SPEC}, scaling: {{schedule: [{BERLN}]}}}}",
    "much memory": f"{HEAD}spec: {{{SPEC}, resources: {{memory: 999Ti}}}}",
}
ONLY_WHERE_IT_RUNS = {"an unknown architecture", "no tokenizer", "much memory"}
URLS = ["notaurl", "http://", "http://[::1", "http://a:x", "ftp://a", "http://.", "http://\0"]
KEYS = ["\xe9", "a\r\nb: c", "\udcff"]
OF_SERVICES = {
    "chat": ["chat", "-m", "x"],
    "steps": ["steps", "--once"],
    "timeline": ["timeline", "-o", "trace.json"],
}
OF_A_CLUSTER = [["get"], ["explain", "x"], ["replay", "x"], ["export", "keda", "x"]]

app = typer.Typer()
app.registered_commands += cli.app.registered_commands
cli.add_commands_of_others(app)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def error_of(arguments: Sequence[str], *, given: bytes | None = None) -> str:
    """The last line of a command's standard error; the command ends with code 1."""
    done = CliRunner().invoke(app, arguments, input=given)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    return line


def write_checkpoints(folder: Path) -> None:
    config = json.loads((TINY / "config.json").read_text())
    for name, architecture in (("mamba", "MambaForCausalLM"), ("mute", *config["architectures"])):
        (folder / name).mkdir()
        changed = config | {"architectures": [architecture], "tie_word_embeddings": False}
        (folder / name / "config.json").write_text(json.dumps(changed))


@pytest.mark.parametrize("command", ["serve", "apply", "validate"])
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_cannot_be(command: str, name: str, tmp_path: Path) -> None:
    if command != "serve" and name in ONLY_WHERE_IT_RUNS:
        pytest.skip("validate takes manifests of other machines, apply needs a service")
    write_checkpoints(tmp_path)
    text = MANIFESTS[name]
    data = text.encode() if isinstance(text, str) else text
    (tmp_path / "isvc.yaml").write_bytes(data)

    error_of([command, "-f", "isvc.yaml"])
    if command == "validate":
        error_of([command, "-f", "-"], given=data)


def test_a_time_zone_that_is_none_has_the_nearest_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "isvc.yaml").write_text(str(MANIFESTS["an unknown time zone"]))

    assert error_of(["validate", "-f", "isvc.yaml"]) == (
        "error: spec.scaling.schedule.0.timeZone: 'Europe/Berln' is not a known time zone; "
        "did you mean 'Europe/Berlin'?"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("an unknown architecture", "spec.model.source: .*MambaForCausalLM is not known"),
        ("no tokenizer", r"spec.model.source: .*tokenizer\.json is missing"),
        ("much memory", "spec.resources.memory: 999Ti is more than the .* of this machine; write"),
    ],
)
def test_serve_says_before_ray_starts_what_no_replica_could_be(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_serve.commands.serve.local_ray", None)
    write_checkpoints(tmp_path)
    (tmp_path / "isvc.yaml").write_text(str(MANIFESTS[name]))

    assert re.search(words, error_of(["serve", "-f", "isvc.yaml"]))


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("command", OF_SERVICES)
def test_a_url_that_is_none(command: str, url: str) -> None:
    line = error_of([*OF_SERVICES[command], "--url", url])

    assert "is not the URL of a service; write one such as http://127.0.0.1:8000" in line


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("command", OF_SERVICES)
def test_a_key_that_no_header_holds(command: str, key: str) -> None:
    line = error_of([*OF_SERVICES[command], "--url", "http://127.0.0.1:1", "--api-key", key])

    assert "a character that is not visible ASCII" in line


@pytest.mark.parametrize(
    "command", [*OF_SERVICES.values(), ["status"], ["stop"], ["stop", "--all"]]
)
def test_a_runtime_folder_that_cannot_be_written(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "tandem").write_text("no folder")

    line = error_of(command)

    assert f"{tmp_path / 'tandem'}, cannot be written: " in line
    assert "in XDG_RUNTIME_DIR or XDG_CACHE_HOME" in line


@pytest.mark.parametrize("text", ["[" * 5000, "{}", '{"pid": "x"}', "9" * 5000, "\xff"])
def test_a_record_that_is_none_is_removed(text: str, tmp_path: Path) -> None:
    (tmp_path / "tandem" / "folder.json").mkdir(parents=True)
    record = tmp_path / "tandem" / "tiny.json"
    record.write_bytes(text.encode("latin-1"))

    assert "No service runs here" in error_of(["stop"])
    assert not record.exists()


@pytest.mark.parametrize("path", ["a" * 5000, "\udcff/x", "/proc/x"])
def test_a_file_that_cannot_be_written(path: str) -> None:
    assert "-o " in error_of(["timeline", "--url", "http://127.0.0.1:1", "-o", path])


@pytest.mark.parametrize("host", ["\0", "a b", "http://x", "\udcff"])
def test_a_host_that_is_none(host: str, tmp_path: Path) -> None:
    (tmp_path / "isvc.yaml").write_text(f"{HEAD}spec: {{{SPEC}}}")

    assert "Cannot listen on port" in error_of(["serve", "-f", "isvc.yaml", "--host", host])


@pytest.mark.parametrize("command", OF_A_CLUSTER)
@pytest.mark.parametrize("text", ["[" * 5000, f"a: {'9' * 5000}", "contexts: 1", "\x01"])
def test_a_kubeconfig_that_is_none(
    command: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    assert "is not a kubeconfig" in error_of(command)
