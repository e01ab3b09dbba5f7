"""`python -m tests.npu.open_npu`: prints why the device npu cannot be used."""

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.registry import open_device

if __name__ == "__main__":
    try:
        open_device("npu")
    except ConfigError as error:
        print(error)  # noqa: T201
