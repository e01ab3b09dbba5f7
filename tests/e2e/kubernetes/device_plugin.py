"""A device plug-in of pretended cards: `python -m tests.e2e.kubernetes.device_plugin`.

It speaks the kubelet's API v1beta1 (`k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto`) by
hand: the messages are a few strings. A card is a device file of the container that does nothing.
"""

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import grpc

RESOURCE: Final = "tandem.test/npu"
CARDS: Final = ("card-0", "card-1")
KUBELET: Final = Path("/var/lib/kubelet/device-plugins")
DEVICE_FILES: Final = ("/dev/davinci0", "/dev/davinci1", "/dev/davinci_manager")
_ENDPOINT: Final = "tandem-test-npu.sock"
_VERSION: Final = "v1beta1"
_NOTHING: Final = b""


def field(number: int, *values: bytes | str) -> bytes:
    """Encode a field of strings or messages, as often as it has values."""
    contents = [value.encode() if isinstance(value, str) else value for value in values]
    tag = bytes([number << 3 | 2])
    return b"".join(tag + _size(len(content)) + content for content in contents)


def _size(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _size(rest) if rest else bytes([low])


def devices() -> bytes:
    """Encode a ListAndWatchResponse: every card is healthy."""
    return field(1, *(field(1, card) + field(2, "Healthy") for card in CARDS))


def allocation() -> bytes:
    """Encode an AllocateResponse of one container: the device files, each a /dev/null."""
    files = [field(1, path) + field(2, "/dev/null") + field(3, "rw") for path in DEVICE_FILES]
    return field(1, field(3, *files))


class Plugin(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """The service v1beta1.DevicePlugin."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a method; None: it is not there."""
        match details.method.rpartition("/")[2]:
            case "GetDevicePluginOptions":
                return grpc.unary_unary_rpc_method_handler(lambda *_: _NOTHING)
            case "ListAndWatch":
                return grpc.unary_stream_rpc_method_handler(_list_and_watch)
            case "Allocate":
                return grpc.unary_unary_rpc_method_handler(lambda *_: allocation())
        return None


def _list_and_watch(_: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    ended = threading.Event()
    context.add_callback(ended.set)
    yield devices()
    ended.wait()


def main() -> None:
    """Serve the kubelet, and make the cards known to it."""
    socket = KUBELET / _ENDPOINT
    socket.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Plugin()])
    server.add_insecure_port(f"unix://{socket}")
    server.start()
    with grpc.insecure_channel(f"unix://{KUBELET / 'kubelet.sock'}") as channel:
        register = channel.unary_unary("/v1beta1.Registration/Register")
        register(field(1, _VERSION) + field(2, _ENDPOINT) + field(3, RESOURCE))
    sys.stdout.write(f"{len(CARDS)} of {RESOURCE}\n")
    server.wait_for_termination()


if __name__ == "__main__":
    main()
