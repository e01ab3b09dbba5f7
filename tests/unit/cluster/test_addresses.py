"""Addresses of a cluster, which are never another's."""

from ipaddress import IPv4Address, IPv4Network
from itertools import combinations

import pytest

from tools.cluster.addresses import SLICES, WHOLE_RANGE, Slice, free_slices, parse_routes

HEADER = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
DEFAULT_ROUTE = "eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0"
ROUTE_TO_THE_SECOND_PODS = "tandem-k8s-1\t000212C6\t010312C6\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0"


def test_the_first_slice_reads_as_documented() -> None:
    first = Slice(0)

    assert first.pods == IPv4Network("198.18.0.0/24")
    assert first.services == IPv4Network("198.19.0.0/24")
    assert (first.node, first.caller) == (IPv4Address("198.18.1.1"), IPv4Address("198.18.1.2"))
    assert first.api_service == IPv4Address("198.19.0.1")


def test_all_slices_lie_in_the_benchmark_range_and_none_touches_another() -> None:
    networks = [network for index in range(SLICES) for network in Slice(index).networks]

    assert all(network.subnet_of(WHOLE_RANGE) for network in networks)
    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))


def test_the_name_of_an_interface_fits_what_linux_allows() -> None:
    assert max(len(Slice(index).interface) for index in range(SLICES)) <= 15


def test_a_route_of_the_caller_takes_a_slice() -> None:
    free = free_slices([IPv4Network("198.18.0.0/24"), IPv4Network("198.19.1.0/24")])

    assert next(free) == Slice(2)


@pytest.mark.parametrize("route", ["0.0.0.0/0", "192.0.2.0/24"])
def test_a_route_elsewhere_takes_none(route: str) -> None:
    assert next(free_slices([IPv4Network(route)])) == Slice(0)


def test_a_route_over_the_whole_range_leaves_nothing() -> None:
    assert not list(free_slices([WHOLE_RANGE]))


def test_the_kernels_table_is_read_in_its_byte_order() -> None:
    table = f"{HEADER}\n{DEFAULT_ROUTE}\n{ROUTE_TO_THE_SECOND_PODS}\n"

    assert parse_routes(table) == [IPv4Network("0.0.0.0/0"), Slice(1).pods]
