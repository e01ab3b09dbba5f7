"""Addresses of a cluster: a slice of its own of the benchmark range (RFC 2544).

No network of the outside uses 198.18.0.0/15, so a route to a slice hides no host.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Final

WHOLE_RANGE: Final = IPv4Network("198.18.0.0/15")
SLICES: Final = 128

_PODS: Final = int(IPv4Address("198.18.0.0"))
_SERVICES: Final = int(IPv4Address("198.19.0.0"))
_STEP: Final = 256


@dataclass(frozen=True, slots=True)
class Slice:
    """The addresses of one cluster; `index` counts from 0 to 127."""

    index: int

    @property
    def pods(self) -> IPv4Network:
        """Range of the pods' addresses."""
        return IPv4Network((_PODS + 2 * self.index * _STEP, 24))

    @property
    def services(self) -> IPv4Network:
        """Range of the ClusterIPs."""
        return IPv4Network((_SERVICES + self.index * _STEP, 24))

    @property
    def link(self) -> IPv4Network:
        """The two ends of the cable between the caller and the node."""
        return IPv4Network((_PODS + (2 * self.index + 1) * _STEP, 30))

    @property
    def node(self) -> IPv4Address:
        """The node: API server, kubelet, DNS."""
        return self.link[1]

    @property
    def caller(self) -> IPv4Address:
        """The caller's end of the cable; the only source that the node listens to."""
        return self.link[2]

    @property
    def api_service(self) -> IPv4Address:
        """`kubernetes.default`: always the first address of the services."""
        return self.services[1]

    @property
    def interface(self) -> str:
        """The caller's end as an interface; Linux allows 15 characters."""
        return f"tandem-k8s-{self.index}"

    @property
    def networks(self) -> tuple[IPv4Network, ...]:
        """All that the slice covers."""
        return (self.pods, self.link, self.services)


def free_slices(routes: Iterable[IPv4Network]) -> Iterator[Slice]:
    """The slices that none of the caller's `routes` touches, lowest first."""
    # A default route covers everything and takes nothing.
    taken = [route for route in routes if route.prefixlen > 0]
    for index in range(SLICES):
        candidate = Slice(index)
        if not any(route.overlaps(network) for route in taken for network in candidate.networks):
            yield candidate


def parse_routes(table: str) -> list[IPv4Network]:
    """The destinations in the text of /proc/net/route."""
    rows = [line.split() for line in table.splitlines()[1:]]
    return [IPv4Network((_address(row[1]), str(_address(row[7])))) for row in rows if row]


def _address(hexadecimal: str) -> IPv4Address:
    """An address as the kernel prints it: a number in the machine's byte order."""
    return IPv4Address(bytes.fromhex(hexadecimal)[::-1])
