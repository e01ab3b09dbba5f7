"""The command line: what it prints and with which code it ends."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tandem_serve import cli
from tandem_serve.cli import app
from tandem_serve.testing import FakeEngine
from tests.unit.serve.local_services import RECORD, serving, silent_url

TINY = Path(__file__).parents[3] / "examples" / "tandem-tiny"

MANIFEST = """\
apiVersion: serving.tandem.dev/v1alpha1
kind: InferenceService
metadata: {name: tiny}
spec: {model: {source: ./model}}
"""

KUBERNETES = """\
apiVersion: serving.tandem.dev/v1alpha1
kind: InferenceService
metadata: {name: tiny, namespace: models}
spec:
  model: {source: pvc://models/tiny}
  server: {apiKeysSecret: keys}
"""

runner = CliRunner()


@pytest.fixture(autouse=True)
def _own_runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    file = tmp_path / "isvc.yaml"
    file.write_text(MANIFEST)
    return file


@pytest.fixture
def taken_port() -> Iterator[int]:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def keyed_service(tmp_path: Path) -> Iterator[str]:
    """URL of a service over real HTTP whose one API key is sk-1."""
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "one").write_text("sk-1\n")
    with serving(FakeEngine(), keys) as url:
        yield url


def make_checkpoint(folder: Path) -> None:
    (folder / "model").symlink_to(TINY)


def test_help_needs_neither_ray_nor_torch_nor_the_network() -> None:
    code = (
        "import sys, tandem_serve.cli\n"
        "try: tandem_serve.cli.main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'ray', 'torch', 'fastapi', 'openai', 'httpx'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "command", ["serve", "apply", "status", "stop", "validate", "chat", "timeline"]
)
def test_every_command_has_help_with_an_example(command: str) -> None:
    done = runner.invoke(app, [command, "--help"])

    assert done.exit_code == 0
    assert "Examples" in done.stdout
    assert f"tandem {command}" in done.stdout


def test_validate_prints_the_manifest_with_its_defaults(manifest: Path) -> None:
    done = runner.invoke(app, ["validate", "-f", str(manifest)])

    assert done.exit_code == 0
    assert f"source: file://{manifest.parent}/model\n" in done.stdout
    assert "maxIterTimes: 512\n" in done.stdout


def test_validate_notes_what_defaults_do_to_requests(manifest: Path) -> None:
    done = runner.invoke(app, ["validate", "-f", str(manifest)])

    output, memory = done.stderr.splitlines()
    assert output == (
        "note: spec.engine.schedule.maxIterTimes is 512: every answer ends after 512 tokens at "
        "most, a reasoning model's perhaps in mid-thought, with finish_reason length; raise it, "
        "up to maxSeqLen; or set spec.slo, which chooses it"
    )
    assert memory == (
        "note: a replica chooses by spec.resources.memory 4Gi: maxSeqLen, up to the model's limit; "
        "maxBatchSize, up to 200. Its log, tandem status and GET /v1/models show the values"
    )
    assert "maxBatchSize" not in done.stdout


def test_validate_reads_standard_input() -> None:
    done = runner.invoke(app, ["validate", "-f", "-"], input=MANIFEST)

    assert done.exit_code == 0
    assert f"file://{Path.cwd()}/model" in done.stdout


def test_validate_lists_every_problem_and_fails(manifest: Path) -> None:
    manifest.write_text(MANIFEST.replace("./model", "/m, maxSeqLn: 8"))

    done = runner.invoke(app, ["validate", "-f", str(manifest)])

    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "error: spec.model.maxSeqLn: unknown field; did you mean 'maxSeqLen'?",
        "error: spec.model.source: '/m' is a bare path; write file:///m",
    ]


def test_serve_refuses_a_folder_without_a_checkpoint_at_once(manifest: Path) -> None:
    folder = manifest.parent / "model"

    missing = runner.invoke(app, ["serve", "-f", str(manifest)])
    folder.mkdir()
    empty = runner.invoke(app, ["serve", "-f", str(manifest)])

    assert missing.exit_code == empty.exit_code == 1
    assert f"spec.model.source: {folder}: no such folder" in missing.stderr
    assert f"spec.model.source: {folder}: it has no config.json" in empty.stderr


def test_serve_refuses_a_port_that_is_taken(manifest: Path, taken_port: int) -> None:
    make_checkpoint(manifest.parent)

    done = runner.invoke(app, ["serve", "-f", str(manifest), "--port", str(taken_port)])

    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        f"error: Cannot listen on port {taken_port} of 127.0.0.1: it is in use, or the address is "
        "not this machine's; choose another with --port, or stop the process that listens there."
    ]


@pytest.mark.parametrize("command", ["serve", "apply"])
def test_what_needs_kubernetes_is_refused_with_a_way_out(
    manifest: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem_serve.commands.apply.find_record", lambda _: RECORD)
    manifest.write_text(KUBERNETES)

    done = runner.invoke(app, [command, "-f", str(manifest)])

    assert done.exit_code == 1
    source, keys = done.stderr.splitlines()
    assert source == (
        "error: spec.model.source: 'pvc://models/tiny' is a volume of Kubernetes; on this machine "
        "name a folder, file:///absolute/path or ./path, or give the manifest to a Kubernetes "
        "with kubectl apply"
    )
    assert keys.startswith("error: spec.server.apiKeysSecret: 'keys' is a Secret of Kubernetes; on")
    assert "tandem serve --api-keys FOLDER" in keys


def test_validate_takes_what_kubernetes_takes(manifest: Path) -> None:
    manifest.write_text(KUBERNETES)

    done = runner.invoke(app, ["validate", "-f", str(manifest)])

    assert done.exit_code == 0
    assert "source: pvc://models/tiny\n" in done.stdout


def test_cards_that_would_lie_idle_are_refused(manifest: Path) -> None:
    manifest.write_text(f"{KUBERNETES}  resources: {{npu: 2}}\n  engine: {{device: cpu}}\n")

    done = runner.invoke(app, ["validate", "-f", str(manifest)])

    assert done.exit_code == 1
    assert done.stderr == (
        "error: spec: resources.npu 2 reserves cards, and engine.device cpu computes on none of "
        "them; leave npu and npuProfile out, or set engine.device: npu\n"
    )


def test_what_has_no_meaning_here_is_only_noted(manifest: Path, taken_port: int) -> None:
    make_checkpoint(manifest.parent)
    manifest.write_text(
        MANIFEST.replace("./model}", "./model}, runtime: {image: x}, server: {apiKeysSecret: a}")
    )

    done = runner.invoke(
        app,
        ["serve", f"-f{manifest}", f"--api-keys={manifest.parent}", f"--port={taken_port}"],
    )

    note, error = done.stderr.splitlines()
    assert note == "note: spec.runtime describes pods and is ignored on this machine"
    assert error.startswith(f"error: Cannot listen on port {taken_port} ")


def test_keys_are_in_a_folder(manifest: Path) -> None:
    done = runner.invoke(app, ["serve", "-f", str(manifest), "--api-keys", str(manifest)])

    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        f"error: --api-keys {manifest} is not a folder; name one of files with an API key each."
    ]


@pytest.mark.parametrize(
    ("has", "words"),
    [(None, "without API keys; stop it with"), ("/keys", "with other API keys; put the keys into")],
)
def test_keys_of_a_service_that_runs_do_not_change_in_passing(
    manifest: Path, monkeypatch: pytest.MonkeyPatch, has: str | None, words: str
) -> None:
    make_checkpoint(manifest.parent)
    running = replace(RECORD, api_keys=has)
    monkeypatch.setattr("tandem_serve.commands.serve.find_record", lambda _: running)

    done = runner.invoke(
        app, ["serve", "-f", str(manifest), "--detach", "--api-keys", str(manifest.parent)]
    )

    assert done.exit_code == 1
    assert f"error: The service tiny is already running {words}" in done.stderr


def test_apply_needs_a_service_that_runs(manifest: Path) -> None:
    make_checkpoint(manifest.parent)

    done = runner.invoke(app, ["apply", "-f", str(manifest)])

    assert done.exit_code == 1
    assert "No service 'tiny' runs here; start it with: tandem serve -f" in done.stderr


def test_stop_and_chat_need_a_service_that_runs() -> None:
    for command in ("stop", "chat"):
        done = runner.invoke(app, [command])

        assert done.exit_code == 1
        assert "No service runs here; start one with: tandem serve -f FILE" in done.stderr


def test_status_without_a_service_says_how_to_start_one() -> None:
    done = runner.invoke(app, ["status"])

    assert done.exit_code == 0
    assert "No service runs here" in done.stdout


def test_chat_says_when_nothing_answers() -> None:
    with silent_url() as url:
        done = runner.invoke(app, ["chat", "--url", url, "-m", "hello"])

    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        f"error: No server answers at {url}; tandem status lists the services here, tandem serve "
        "-f FILE starts one, --url names one elsewhere."
    ]


@pytest.mark.parametrize("from_environment", [False, True])
def test_chat_brings_the_key_that_it_is_given(
    keyed_service: str, monkeypatch: pytest.MonkeyPatch, *, from_environment: bool
) -> None:
    key = [] if from_environment else ["--api-key", "sk-1"]
    if from_environment:
        monkeypatch.setenv("TANDEM_API_KEY", "sk-1")

    done = runner.invoke(app, ["chat", "--url", keyed_service, "-m", "ab", *key])

    assert done.exit_code == 0
    assert done.stdout == ":tnatsissa;ba:resu\n"


def test_chat_says_when_a_key_is_needed(
    keyed_service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TANDEM_API_KEY", raising=False)
    # A key that is meant for another service stays here.
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")

    done = runner.invoke(app, ["chat", "--url", keyed_service, "-m", "hello"])

    wrong = runner.invoke(app, ["chat", "--url", keyed_service, "--api-key", "sk-2", "-m", "hi"])

    assert done.exit_code == wrong.exit_code == 1
    assert done.stderr.splitlines() == [
        f"error: {keyed_service} requires an API key; pass one with --api-key or in TANDEM_API_KEY."
    ]
    assert wrong.stderr.splitlines() == [
        f"error: {keyed_service} answered: The API key is not valid; send one from the "
        "service's Secret of API keys."
    ]


def greet() -> None:
    """Say hello."""
    typer.echo("hello")


def test_other_packages_add_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    group = typer.Typer()
    group.command("plan")(greet)
    points = {"greet": greet, "operator": group}

    class Point:
        def __init__(self, name: str) -> None:
            self.name = name

        def load(self) -> object:
            return points[self.name]

    fresh = typer.Typer()
    monkeypatch.setattr(cli, "entry_points", lambda *, group: [Point(name) for name in points])

    cli.add_commands_of_others(fresh)

    assert runner.invoke(fresh, ["greet"]).stdout == "hello\n"
    assert "plan" in runner.invoke(fresh, ["operator", "--help"]).stdout


def test_the_entry_point_group_is_the_documented_one() -> None:
    point = EntryPoint(name="x", value="y:z", group=cli.COMMANDS_GROUP)

    assert point.group == "tandem.commands"
