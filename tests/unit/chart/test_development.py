"""Values that run operator and replicas from a checkout."""

from pathlib import Path
from typing import Any

import pytest

from tools.development import NotReadable, check_readable, development_values, outermost

CHECKOUT = Path(__file__).parents[3]


def values(tmp_path: Path) -> dict[str, Any]:
    venv, python_home = tmp_path / "venv", tmp_path / "python"
    for folder in (tmp_path, venv, python_home):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
    return development_values(venv, python_home, CHECKOUT)


def test_a_folder_inside_another_is_mounted_with_it() -> None:
    folders = [Path("/a/b/.venv"), Path("/a/b"), Path("/a/bc"), Path("/a/b")]

    assert outermost(folders) == [Path("/a/b"), Path("/a/bc")]


def test_operator_and_replicas_see_the_same_folders_and_cannot_write_there(tmp_path: Path) -> None:
    made = values(tmp_path)

    replica = made["settings"]["replica"]
    assert made["extraVolumes"] == replica["volumes"]
    assert made["extraVolumeMounts"] == replica["volumeMounts"]
    hosts = {volume["name"] for volume in made["extraVolumes"] if "hostPath" in volume}
    assert hosts
    assert all(mount["readOnly"] for mount in made["extraVolumeMounts"] if mount["name"] in hosts)


def test_the_environment_of_the_checkout_comes_first_on_the_path(tmp_path: Path) -> None:
    made = values(tmp_path)

    env = {entry["name"]: entry["value"] for entry in made["extraEnv"]}
    assert env["PATH"].split(":")[0] == str(tmp_path / "venv/bin")


def test_the_system_is_not_mounted_for_its_python(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    made = development_values(tmp_path, Path("/usr"), tmp_path)

    assert [mount["mountPath"] for mount in made["extraVolumeMounts"]] == [str(tmp_path)]


def test_a_folder_that_only_its_owner_reads_is_refused(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(NotReadable, match=r"chmod -R o\+rX .*closed"):
        check_readable([closed])
