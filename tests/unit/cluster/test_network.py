"""Users of the link between the caller and the node."""

from tools.cluster.addresses import Slice
from tools.cluster.network import inside_commands

LINES = [" ".join(command) for command in inside_commands(Slice(0))]


def test_only_the_callers_own_address_is_let_in() -> None:
    rule = "iptables -w -t raw -A PREROUTING -i uplink ! -s 198.18.1.2/32 -j DROP"

    assert rule in LINES


def test_no_connection_is_let_out_whatever_other_rules_accept() -> None:
    rule = "iptables -w -t mangle -A POSTROUTING -o uplink -m conntrack --ctstate NEW -j DROP"

    after = [line for line in LINES[LINES.index(rule) + 1 :] if "POSTROUTING" in line]
    assert all("NFQUEUE" in line for line in after)


def test_policies_judge_both_ends_of_a_connection_of_pods() -> None:
    judged = [line for line in LINES if "-j NFQUEUE" in line]

    assert ["-s 198.18.0.0/24" in line for line in judged] == [True, False]
    assert ["-d 198.18.0.0/24" in line for line in judged] == [False, True]


def test_the_rules_stand_before_the_node_forwards_anything() -> None:
    assert not any("ip_forward" in line for line in LINES)
