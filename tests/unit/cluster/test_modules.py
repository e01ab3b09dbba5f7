"""The key of a build changes with everything that decides what it yields."""

import pytest

from tools.cluster.modules import (
    ALL_MODULES,
    MODULES,
    PROMETHEUS,
    Module,
    key,
    linker_flags,
    parse_go_version,
    tag_flags,
    version_of,
)
from tools.cluster.paths import GO_MODULES

FILES = {"go.mod": b"module x", "go.sum": b"a h1:b"}
FLAGS = ("-buildvcs=false",)
GO_MOD = """
module tandem/cluster/x

require k8s.io/kubernetes v1.36.3

require (
\tgo.etcd.io/etcd/server/v3 v3.6.5
\tgo.etcd.io/etcd/server/v3/other v9.9.9 // indirect
)
"""


def test_equal_ingredients_give_the_same_key() -> None:
    assert key(FILES, "go1.26.8", FLAGS) == key(dict(reversed(FILES.items())), "go1.26.8", FLAGS)


@pytest.mark.parametrize(
    ("files", "version", "flags"),
    [
        (FILES | {"go.sum": b"a h1:c"}, "go1.26.8", FLAGS),
        (FILES | {"main.go": b""}, "go1.26.8", FLAGS),
        (FILES, "go1.26.9", FLAGS),
        (FILES, "go1.26.8", ()),
    ],
)
def test_another_ingredient_gives_another_key(
    files: dict[str, bytes], version: str, flags: tuple[str, ...]
) -> None:
    assert key(files, version, flags) != key(FILES, "go1.26.8", FLAGS)


@pytest.mark.parametrize(
    ("source", "version"),
    [
        ("k8s.io/kubernetes", "v1.36.3"),
        ("go.etcd.io/etcd/server/v3", "v3.6.5"),
        ("github.com/who", ""),
    ],
)
def test_the_version_is_the_one_that_go_mod_requires(source: str, version: str) -> None:
    assert version_of(GO_MOD, source) == version


def test_kubernetes_gets_its_version() -> None:
    flags = linker_flags(MODULES[0], "v1.36.3")

    assert "version.gitVersion=v1.36.3 " in flags
    assert flags.endswith("version.gitMinor=36")


def test_tags_are_one_argument() -> None:
    assert tag_flags(PROMETHEUS) == ("-tags", "remove_all_sd,enable_kubernetes_sd")
    assert tag_flags(MODULES[0]) == ()


def test_no_two_programs_have_one_name() -> None:
    names = [name for module in ALL_MODULES for name in module.programs.values()]

    assert len(set(names)) == len(names)


@pytest.mark.parametrize("module", ALL_MODULES, ids=lambda module: module.name)
def test_every_module_is_pinned(module: Module) -> None:
    folder = GO_MODULES / module.name
    is_ours = not module.source

    assert is_ours or (folder / "go.sum").exists()
    assert is_ours or version_of((folder / "go.mod").read_text(), module.source)


@pytest.mark.parametrize(
    ("text", "version"),
    [("go1.26.8", (1, 26)), ("go1.27rc1", (1, 27)), ("", None), ("devel", None)],
)
def test_the_version_of_go_is_read(text: str, version: tuple[int, int] | None) -> None:
    assert parse_go_version(text) == version
