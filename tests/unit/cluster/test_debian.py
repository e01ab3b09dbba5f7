"""Output of apt, and the choice of missing packages from it."""

from tools.cluster.debian import Package, key, parse_uris

URIS = """\
'http://mirror.invalid/pool/main/r/runc/runc_1.1.5%2bds1-1_amd64.deb' runc_1.1.5+ds1-1_amd64.deb 2709960 MD5Sum:5532
'http://mirror.invalid/pool/main/c/c/conntrack_1.4.7-1_amd64.deb' conntrack_1%3a1.4.7-1_amd64.deb 35240 SHA256:c4ca
"""  # noqa: E501  # as apt prints it


def test_packages_to_download_are_read_with_their_sizes() -> None:
    found = parse_uris(URIS)

    assert [package.name for package in found] == ["runc", "conntrack"]
    assert sum(package.size for package in found) == 2745200


def test_other_lines_of_apt_are_ignored() -> None:
    assert parse_uris("Reading package lists...\n") == []


def test_a_package_is_named_by_what_stands_before_its_version() -> None:
    assert Package("libnftnl11_1.2.4-2_amd64.deb", 1).name == "libnftnl11"


def test_a_machine_that_installs_one_of_them_gets_a_folder_of_its_own() -> None:
    assert key("debian 12", ["iproute2"]) != key("debian 12", ["iproute2", "iptables"])
    assert key("debian 12", ["a", "b"]) == key("debian 12", ["b", "a"])
