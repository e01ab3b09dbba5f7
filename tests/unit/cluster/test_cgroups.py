"""The caller's own cgroup is found in every way that machines mount them."""

from pathlib import Path

import pytest

from tools.cluster.cgroups import Hierarchy, parse_hierarchies, plan, remove
from tools.cluster.errors import Unavailable

V1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_GROUPS = """\
9:name=systemd:/
4:memory:/docker/abc/job
1:cpu,cpuacct:/jobs/7
0::/
"""
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V2_GROUPS = "0::/user.slice/session-1.scope\n"


def test_version_1_has_a_hierarchy_for_each_set_of_controllers() -> None:
    found = {
        hierarchy.options: hierarchy.own for hierarchy in parse_hierarchies(V1_MOUNTS, V1_GROUPS)
    }

    assert found["cpu,cpuacct"] == Path("/sys/fs/cgroup/cpu,cpuacct/jobs/7")
    assert found["memory"] == Path("/sys/fs/cgroup/memory/job")
    assert found["name=systemd"] == Path("/sys/fs/cgroup/systemd")


def test_version_2_has_one() -> None:
    (found,) = parse_hierarchies(V2_MOUNTS, V2_GROUPS)

    assert (found.version, found.options) == (2, "")
    assert found.own == Path("/sys/fs/cgroup/user.slice/session-1.scope")


def v2(tmp_path: Path, **controllers: str) -> Hierarchy:
    """A hierarchy whose folders are the given ones, each inside the one before."""
    folder = tmp_path
    for name, handed_on in controllers.items():
        folder = folder if name == "root" else folder / name
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(handed_on)
    return Hierarchy(version=2, mounted_at=tmp_path, options="", own=folder)


def test_in_version_2_the_nearest_group_that_hands_controllers_on_is_taken(tmp_path: Path) -> None:
    hierarchy = v2(tmp_path, root="cpu memory pids", user="cpu memory pids", session="")

    assert plan([hierarchy], "tandem-x") == (tmp_path / "user/tandem-x",)


def test_in_version_2_a_machine_that_hands_nothing_on_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="hands on the controllers cpu, memory, pids"):
        plan([v2(tmp_path, root="cpu", session="")], "tandem-x")


def test_a_tree_is_removed_with_all_groups_below(tmp_path: Path) -> None:
    (tmp_path / "tandem-x/kubepods/burstable").mkdir(parents=True)

    assert remove([tmp_path / "tandem-x", tmp_path / "never-was"]) == []
    assert not list(tmp_path.iterdir())
