"""Starting and ending a service, against a stand-in for the `tandem` command."""

import os
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.serving.errors import BenchmarkError
from benchmarks.serving.service import running_service

STAND_IN = """\
#!{python}
import sys
from pathlib import Path
folder = Path(__file__).parent
with open(folder / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
if sys.argv[1] == "validate":
    print("metadata: {{name: tiny}}\\nspec: {{model: {{name: tiny}}}}")
if sys.argv[1] == "serve":
    (folder / "served").write_text(sys.stdin.read())
sys.exit(sys.argv[1] == {fails!r})
"""


def make_command(folder: Path, *, fails: str = "") -> str:
    file = folder / "tandem"
    file.write_text(STAND_IN.format(python=sys.executable, fails=fails))
    file.chmod(0o700)
    return str(file)


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_a_service_of_its_own_is_started_and_ended(tmp_path: Path) -> None:
    command = make_command(tmp_path)

    with running_service(Path("isvc.yaml"), command=command) as url:
        port = url.removeprefix("http://127.0.0.1:").removesuffix("/v1")
        assert calls(tmp_path) == ["validate -f isvc.yaml", f"serve -f - --port {port} --detach"]

    assert calls(tmp_path)[2:] == [f"stop bench-{os.getpid()}"]
    assert yaml.safe_load((tmp_path / "served").read_text()) == {
        "metadata": {"name": f"bench-{os.getpid()}"},
        "spec": {"model": {"name": "tiny"}},
    }


def test_it_ends_also_when_the_benchmark_is_interrupted(tmp_path: Path) -> None:
    command = make_command(tmp_path)

    with (
        pytest.raises(KeyboardInterrupt),
        running_service(Path("isvc.yaml"), command=command),
    ):
        raise KeyboardInterrupt

    assert calls(tmp_path)[-1].startswith("stop bench-")


@pytest.mark.parametrize(
    ("fails", "sentence"),
    [("validate", r"isvc\.yaml cannot be served"), ("serve", "The service did not start")],
)
def test_a_service_that_does_not_start_is_one_sentence(
    tmp_path: Path, fails: str, sentence: str
) -> None:
    command = make_command(tmp_path, fails=fails)

    with (
        pytest.raises(BenchmarkError, match=sentence),
        running_service(Path("isvc.yaml"), command=command),
    ):
        pytest.fail("it must not begin")

    assert not any(call.startswith("stop") for call in calls(tmp_path))
