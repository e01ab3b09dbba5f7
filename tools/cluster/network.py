"""The cable between the caller and the node, and who may use it.

Outside, one interface with routes to node, pods and services; no port is opened. Inside, a packet
is let in only if it was sent by the caller's own address, and no connection is let out.
"""

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from tools.cluster.addresses import WHOLE_RANGE, Slice, free_slices, parse_routes
from tools.cluster.errors import ClusterError

UPLINK: Final = "uplink"
POLICIES_QUEUE: Final = 100
_EXISTS: Final = "File exists"


class Network:
    """Runs `ip` for the caller's side; `packages` has one where the host has none."""

    def __init__(self, packages: Path) -> None:
        folders = [packages / "usr/sbin", packages / "usr/bin", packages / "sbin", packages / "bin"]
        libraries = [str(folder) for folder in packages.glob("usr/lib/*-linux-gnu*")]
        path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
        self._environment = {
            "PATH": ":".join([path, *map(str, folders)]),
            # Libraries of the packages exist only because the host does not have them.
            "LD_LIBRARY_PATH": ":".join(libraries),
        }

    def connect(self, init: int) -> Slice:
        """Lay the cable to the network namespace of `init`, in an unused slice.

        Raises:
            ClusterError: no slice is free.
        """
        routes = parse_routes(Path("/proc/net/route").read_text(encoding="ascii"))
        for candidate in free_slices(routes):
            # The interface's name is the claim: of two that want it at once, one gets it.
            end = ("peer", "name", UPLINK, "netns", str(init))
            if self._ip("link", "add", candidate.interface, "type", "veth", *end):
                self._set_up(candidate)
                return candidate
        raise ClusterError(
            f"all of {WHOLE_RANGE} is in use; free some: python -m tools.cluster down --all"
        )

    def disconnect(self, addresses: Slice, number: int) -> None:
        """Take the cable and its routes away, if they are there.

        The kernel takes it away with the sandbox, and another cluster may have its name by then:
        `number`, the kernel's own, tells whether it is still ours.
        """
        if interface_number(addresses.interface) == number:
            with suppress(ClusterError):
                self._ip("link", "del", addresses.interface)

    def _set_up(self, addresses: Slice) -> None:
        device = ("dev", addresses.interface)
        source = ("src", str(addresses.caller))
        prefix = addresses.link.prefixlen
        self._ip("addr", "add", f"{addresses.caller}/{prefix}", *device)
        disable_ipv6(addresses.interface)
        self._ip("link", "set", addresses.interface, "up")
        for network in (addresses.pods, addresses.services):
            self._ip("route", "add", str(network), "via", str(addresses.node), *device, *source)

    def _ip(self, *arguments: str) -> bool:
        done = subprocess.run(
            ["ip", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return True
        if _EXISTS in done.stderr:
            return False
        raise ClusterError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


def interface_number(interface: str) -> int | None:
    """The number that the kernel gives to an interface, and to no other afterwards."""
    try:
        return int(Path(f"/sys/class/net/{interface}/ifindex").read_text(encoding="ascii"))
    except OSError:
        return None


def set_up_inside(addresses: Slice) -> None:
    """Configure the node's end of the cable; called in the sandbox."""
    disable_ipv6(UPLINK)
    for command in inside_commands(addresses):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")


def disable_ipv6(interface: str) -> None:
    """Give an interface of ours no address by which the rules, which are IPv4's, are passed by."""
    setting = Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6")
    if setting.exists():
        setting.write_text("1", encoding="ascii")


def inside_commands(addresses: Slice) -> list[list[str]]:
    """Return the commands that configure the node's end."""
    new = "-m conntrack --ctstate NEW"
    lines = (
        "ip link set lo up",
        f"ip addr add {addresses.node}/{addresses.link.prefixlen} dev {UPLINK}",
        f"ip link set {UPLINK} up",
        # Ray asks for the route to a public address to learn its own; nothing is ever sent there.
        f"ip route add default via {addresses.caller} dev {UPLINK}",
        # In: only what the caller itself sent, not what its machine forwards for others.
        f"iptables -w -t raw -A PREROUTING -i {UPLINK} ! -s {addresses.caller}/32 -j DROP",
        # Out: answers only. Refused at once where that can be told, dropped in any case.
        *(
            f"iptables -w -A {chain} -o {UPLINK} {where} {new} -j REJECT"
            for chain in ("FORWARD", "OUTPUT")
            # A service's address is still on its way to this interface when OUTPUT sees it.
            for where in (f"-d {addresses.caller}/32", f"! -d {WHOLE_RANGE}")
        ),
        f"iptables -w -t mangle -A POSTROUTING -o {UPLINK} {new} -j DROP",
        # NetworkPolicies judge who connects to a pod, and to whom it connects, but the node's own
        # root: the kubelet's probes. What is let in passes by the rules below, so this is last.
        *(
            f"iptables -w -t mangle -A POSTROUTING {end} {addresses.pods} {new}"
            f" -m owner ! --uid-owner 0 -j NFQUEUE --queue-num {POLICIES_QUEUE} --queue-bypass"
            for end in ("-s", "-d")
        ),
    )
    return [line.split() for line in lines]
