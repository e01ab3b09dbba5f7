"""Device backends by name. A backend is imported when it is chosen, never before."""

from collections.abc import Callable
from importlib import import_module
from typing import cast

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.runtime import DeviceRuntime

BACKENDS = {
    "cpu": "tandem_engine.device.cpu.runtime:CpuRuntime",
    "npu": "tandem_engine.device.npu.runtime:NpuRuntime",
}
"""Name → "module:attribute" of a callable that takes `memory_bytes` and returns a runtime."""


def open_device(name: str, *, memory_bytes: int | None = None) -> DeviceRuntime:
    """The runtime of the backend `name`.

    Args:
        name: One of BACKENDS.
        memory_bytes: Memory that this process may use; None lets the backend find out.

    Raises:
        ConfigError: There is no such backend.
    """
    if name not in BACKENDS:
        raise ConfigError(f"device '{name}' is not one of {', '.join(BACKENDS)}")
    module, attribute = BACKENDS[name].split(":")
    make = cast(Callable[..., DeviceRuntime], getattr(import_module(module), attribute))
    return make(memory_bytes=memory_bytes)
