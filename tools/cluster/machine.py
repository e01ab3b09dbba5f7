"""The supervisor inside the sandbox: starts the parts in order, then does what it is told.

It ends only by being killed: the machine is thrown away whole, there is nothing to save.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.cluster import commands, config, control, network, pki, rootfs
from tools.cluster.addresses import Slice
from tools.cluster.errors import ClusterError
from tools.cluster.parts import JOB, Parts
from tools.cluster.probes import Api, accepts_tcp, accepts_unix, answers_http
from tools.cluster.rootfs import NODE
from tools.cluster.startup import Startup, Step
from tools.cluster.state import Files, MachineStatus, Order, Phase, write_atomically

Report = Callable[[str, str], None]
"""Sends one event to the caller: its kind, and a text."""

_POLL_S: Final = 0.04
_TIMEOUT_S: Final = 180.0
_PLAIN_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ACCOUNT: Final = "/api/v1/namespaces/default/serviceaccounts/default"


def run(order: Order, addresses: Slice, report: Report) -> None:
    """Be the machine until something kills it.

    Raises:
        ClusterError: it cannot start.
    """
    files = Files(Path(order.folder))
    network.set_up_inside(addresses)
    rootfs.write_resolver(str(addresses.node))
    _write_keys(files, addresses)
    _write_config(files, addresses)
    parts = Parts(commands.command_lines(files, addresses, NODE), environment(order), files.logs)
    steps = _steps(order, parts, Api(addresses.node, files.pki, commands.ADMIN), addresses)
    _start(steps, parts, report)
    # The caller learns it last: what it then asks for, it gets.
    with control.listen(files.control) as listener:
        _note(files, Phase.READY, parts)
        report("ready", "")
        control.serve(listener, parts, on_change=lambda: _note(files, Phase.READY, parts))


def environment(order: Order) -> dict[str, str]:
    """Environment of every process of the machine."""
    files = Files(Path(order.folder))
    return {
        "PATH": f"{order.programs}:{_PLAIN_PATH}",
        "HOME": "/root",
        "LANG": "C.UTF-8",
        # Of the parts, which are Go's: garbage took a quarter of the API server's time, most of it
        # while CRDs are installed. Near a GiB it is collected more often again.
        "GOGC": "400",
        "GOMEMLIMIT": "1GiB",
        "TMPDIR": str(rootfs.TEMPORARY),
        "KUBECONFIG": str(files.kubeconfig),
    }


def _start(steps: list[Step], parts: Parts, report: Report) -> None:
    startup = Startup(steps, on_done=lambda name: report("progress", name))
    deadline = time.monotonic() + _TIMEOUT_S
    while not startup.tick():
        dead = parts.find_dead()
        if dead:
            raise ClusterError(dead)
        if time.monotonic() > deadline:
            late = ", ".join(startup.running)
            raise ClusterError(f"not ready within {_TIMEOUT_S:.0f} s: {late}")
        time.sleep(_POLL_S)


def _steps(order: Order, parts: Parts, api: Api, addresses: Slice) -> list[Step]:
    def part(name: str, is_done: Callable[[], bool], after: tuple[str, ...] = ()) -> Step:
        start = lambda: parts.start(name)  # noqa: E731
        return Step(name=name, after=after, start=start, is_done=is_done)

    def image(archive: str) -> Step:
        # The file's name ends in a key, which says nothing to a reader.
        job = f"{JOB}{Path(archive).stem.partition('-')[0]}"
        return Step(
            name=job,
            after=(commands.CONTAINERD,),
            start=lambda: parts.run(job, commands.import_image(archive)),
            is_done=lambda: parts.ended_well(job),
        )

    served = (commands.API_SERVER,)
    steps = [
        part(commands.ETCD, lambda: accepts_tcp("127.0.0.1", commands.ETCD_PORT)),
        part(commands.API_SERVER, api.is_ready, (commands.ETCD,)),
        part(commands.CONTAINERD, lambda: accepts_unix(config.CONTAINERD_SOCKET)),
        # Pods cannot be made before the controller made their namespace's account.
        part(commands.CONTROLLER_MANAGER, lambda: api.has(_ACCOUNT), served),
        part(commands.SCHEDULER, lambda: True, served),
        part(
            commands.KUBELET,
            lambda: api.is_node_ready(NODE),
            (*served, commands.CONTAINERD),
        ),
        part(
            commands.PROXY,
            lambda: answers_http(commands.PROXY_HEALTH_PORT, "/healthz"),
            served,
        ),
        part(
            commands.POLICIES,
            lambda: answers_http(commands.POLICIES_PORT, "/healthz"),
            served,
        ),
        part(
            commands.DNS,
            lambda: accepts_tcp(str(addresses.node), commands.DNS_PORT),
            served,
        ),
    ]
    return steps + [image(archive) for archive in order.images]


def _write_keys(files: Files, addresses: Slice) -> None:
    files.pki.mkdir(mode=0o700)
    files.config.mkdir(mode=0o700)
    authority = pki.Authority("tandem")
    _write_private(files.pki / "ca.crt", authority.certificate)
    serving = authority.sign(
        "kube-apiserver",
        addresses=(addresses.node, addresses.api_service, config.LOOPBACK),
        hosts=config.API_HOSTS,
    )
    _write_pair(files.pki, "serving", serving)
    # An authority of its own: no other client may name users by header.
    aggregator = pki.Authority(f"tandem {commands.AGGREGATOR}")
    _write_private(files.pki / f"{commands.AGGREGATOR}-ca.crt", aggregator.certificate)
    _write_pair(files.pki, commands.AGGREGATOR, aggregator.sign(commands.AGGREGATOR))
    private, public = pki.signing_key()
    _write_private(files.pki / "accounts.key", private)
    _write_private(files.pki / "accounts.pub", public)
    for name, account in commands.accounts(NODE).items():
        pair = authority.sign(account.user, groups=account.groups)
        _write_pair(files.pki, name, pair)
        text = config.kubeconfig(addresses.node, authority.certificate, pair).encode()
        _write_private(files.config / name, text)
        if name == commands.ADMIN:
            _write_private(files.kubeconfig, text)


def _write_pair(folder: Path, name: str, pair: pki.KeyPair) -> None:
    _write_private(folder / f"{name}.crt", pair.certificate)
    _write_private(folder / f"{name}.key", pair.key)


def _write_private(file: Path, data: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)


def _write_config(files: Files, addresses: Slice) -> None:
    authority = files.pki / "ca.crt"
    snapshotter = "native" if rootfs.is_on_overlay(files.data) else "overlayfs"
    config.CNI_FOLDER.mkdir()
    texts = {
        files.config / "kubelet.json": json.dumps(config.kubelet(addresses, authority), indent=1),
        files.config / "containerd.toml": config.containerd(snapshotter=snapshotter),
        files.config / "Corefile": config.corefile(addresses, files.config / commands.DNS),
        config.CNI_FOLDER / "10-pods.conflist": json.dumps(config.cni(addresses), indent=1),
    }
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")


def _note(files: Files, phase: Phase, parts: Parts) -> None:
    status = MachineStatus(phase=phase, parts=parts.statuses())
    write_atomically(files.status, status.to_json())
