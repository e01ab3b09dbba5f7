"""Commands of other programs that the docs show name files, charts, objects and extras that exist.

None of them is run here; tests/integration/test_programs.py runs those of docs/guides/programs.md.
A program that has no check here fails, so that no command is overlooked.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tandem_operator.crd.manifest import NAME, definition
from tandem_operator.ray import token_key
from tandem_serve.api.manifest import parse_manifest
from tests.integration.programs import PROGRAMS, REQUIREMENTS
from tests.unit.docs.pages import (
    CONSOLE_LANGUAGES,
    ROOT,
    Block,
    all_blocks,
    console_commands,
    name_of,
)
from tools.cluster import kuberay
from tools.cluster.modules import KUBERAY, version_of
from tools.cluster.paths import GO_MODULES

NAMESPACES: Final = {"tandem-system", "kuberay-system", "monitoring", "team-a", "models", "storage"}
KUBERNETES_OWN: Final = {"pods", "pod", "svc", "deploy", "crd", "secret", "events"}
VERBS: Final = {
    "apply", "get", "describe", "delete", "scale", "patch", "wait", "port-forward", "cp", "exec",
    "create", "logs",
}  # fmt: skip
_OPERATORS: Final = "();<>|&"


def commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a line, those of `$(…)` and of pipes among them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if inner := re.fullmatch(r"\$\((.*)\)", word):
            yield from commands(inner[1])
        if not set(word) <= set(_OPERATORS):
            words.append(word)
            continue
        if words := [one for one in words if not re.fullmatch(r"[A-Z_]+=\S*", one)]:
            yield words
        words = []


def options(words: list[str], *names: str) -> list[str]:
    """Return the values of these options."""
    return [
        words[at + 1] if word in names else word.partition("=")[2]
        for at, word in enumerate(words)
        if word in names or word.partition("=")[0] in names
    ]


def check_ours(_: list[str]) -> None:
    """Check nothing: test_console parses it."""


def check_kubectl(words: list[str]) -> None:
    """Check verb, namespaces, objects and files."""
    assert words[1] in VERBS
    assert {*options(words, "-n", "--namespace")} <= NAMESPACES
    assert all(map(exists, options(words, "-f")))
    check_patch(words)
    objects = [word for word in words[2:] if kind_of(word)]
    needs_kind = words[1] in {"get", "describe", "delete", "scale", "patch"}
    assert objects or not needs_kind


def kind_of(word: str) -> str | None:
    """Return the kind that a word of kubectl names: `pods`, `isvc/mine`; None: it names none."""
    names = definition()["spec"]["names"]
    known = KUBERNETES_OWN | {*names["shortNames"], names["plural"], names["singular"]}
    kind = word.partition("/")[0]
    return kind if kind in known else None


def check_patch(words: list[str]) -> None:
    """Check that a patch is one of fields that the manifest has."""
    smallest: dict[str, Any] = {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "mine"},
    }
    for text in options(words, "-p"):
        spec = {"model": {"source": "pvc://models/m"}, **json.loads(text)["spec"]}
        parse_manifest(yaml.safe_dump({**smallest, "spec": spec}), folder=Path("/"))


def exists(name: str) -> bool:
    """Return True for a file of the repository, one that a page shows under this name, and `-`."""
    return name == "-" or (ROOT / name).exists() or name in files_shown()


@cache
def files_shown() -> set[str]:
    """Return the names in the first lines of YAML: `# isvc.yaml`, also with a remark behind it."""
    firsts = (block.lines[0] for block in all_blocks("yaml"))
    return {match[1] for line in firsts if (match := re.match(r"# (\S+\.yaml)\b", line))}


def check_helm(words: list[str]) -> None:
    """Check release, chart, version and values."""
    verb, release, *rest = words[1:]
    assert verb in {"install", "upgrade", "rollback", "uninstall"}
    assert release in {"tandem", "kuberay-operator"}
    assert {*options(words, "-n", "--namespace")} <= NAMESPACES
    assert all(map(exists, options(words, "-f", "--values")))
    if release == "tandem":
        values = json.loads((ROOT / "charts/tandem/values.schema.json").read_text())["properties"]
        assert {option.partition("=")[0] for option in options(words, "--set")} <= {*values}
    if verb in {"rollback", "uninstall"}:
        return
    if release == "tandem":
        assert (ROOT / rest[0] / "Chart.yaml").is_file()
    else:
        assert options(words, "--version") == [kuberay_version()]
        (container,) = kuberay.deployment()["spec"]["template"]["spec"]["containers"]
        (variable,) = container["env"]
        assert options(words, "--set") == [f"env[0].name={variable['name']}"]
        assert options(words, "--set-string") == [f"env[0].value={variable['value']}"]


@cache
def kuberay_version() -> str:
    go_mod = (GO_MODULES / KUBERAY.name / "go.mod").read_text()
    return version_of(go_mod, KUBERAY.source).removeprefix("v")


def check_pip(words: list[str]) -> None:
    """Check that the extras exist; a package is one that the text explains."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in words[2:]:
        extras = re.fullmatch(r"\.\[(.*)\]", word)
        assert extras or word == "huggingface_hub" or word in REQUIREMENTS
        if extras:
            assert {*extras[1].split(",")} <= {*project["optional-dependencies"]}


def check_client(words: list[str]) -> None:
    """Check that the command is one of those that tests/integration/test_programs.py runs."""
    assert shlex.join(words) in {shlex.join(each.command) for each in PROGRAMS}


def check_podman(words: list[str]) -> None:
    """Check that the Containerfile is there, and that the tag is the chart's version."""
    chart = yaml.safe_load((ROOT / "charts/tandem/Chart.yaml").read_text())

    assert all((ROOT / name).is_file() for name in options(words, "--file"))
    assert [tag.rpartition(":")[2] for tag in options(words, "--tag")] == [chart["appVersion"]]


def check_python(words: list[str]) -> None:
    """Check that a script exists; modules are parsed by test_console."""
    if words[1] != "-m":
        assert (ROOT / words[1]).is_file() or tuple(words) in {each.command for each in PROGRAMS}
    else:
        assert words[2] == "venv" or words[2].partition(".")[0] in {"benchmarks", "tools"}


def check_uv(words: list[str]) -> None:
    """Check that the files are there."""
    files = [word for word in words if word.endswith((".toml", ".txt"))]

    assert files
    assert all((ROOT / name).is_file() for name in files)


def check_simple(words: list[str]) -> None:
    """Check that a tool of every system is called in a form that the docs use."""
    assert " ".join(words[:2]) in {
        "git clone", "cd tandem", "chmod -R", "hf download", "jq -r", "grep ^export",
    } or words[0] in {"export", "eval"}  # fmt: skip


CHECKS: Final[Mapping[str, Callable[[list[str]], None]]] = {
    "tandem": check_ours,
    "make": check_ours,
    "curl": check_ours,
    "python": check_python,
    "python3": check_python,
    "kubectl": check_kubectl,
    "helm": check_helm,
    "pip": check_pip,
    "podman": check_podman,
    "uv": check_uv,
    **dict.fromkeys(("guidellm", "evalscope", "aiperf", "vllm", "ais_bench"), check_client),
    **dict.fromkeys(("git", "cd", "chmod", "hf", "jq", "grep", "export", "eval"), check_simple),
}
"""Program → its check; test_console and test_http_examples check ours, make and curl."""

CASES: Final = [
    (block, line, words)
    for block in all_blocks(*CONSOLE_LANGUAGES)
    for line in console_commands(block)
    for words in commands(line)
]


@pytest.mark.parametrize(
    ("block", "words"),
    [(block, words) for block, _, words in CASES],
    ids=[f"{block} {line[:40]}" for block, line, _ in CASES],
)
def test_every_command_is_checked(block: Block, words: list[str]) -> None:
    program = words[0].rpartition("/")[2]
    assert program in CHECKS, f"{block}: nothing checks {program}; add it to CHECKS"

    CHECKS[program](words)


def test_names_of_objects_in_commands_are_those_of_the_code() -> None:
    text = "\n".join(line for _, line, _ in CASES)

    assert f"delete crd {NAME}" in text
    assert f"tandem-system {token_key.NAME}" in text
    assert len({name_of(block.page) for block, _, _ in CASES}) > 10
