"""Put a pretended card in the NPU's place: Python imports this where PYTHONPATH has its folder.

Nothing is imported before a replica opens the device, so that the other programs of a pod start as
they do without it.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_REAL = "tandem_engine.device.npu.runtime"
_CHECKOUT = Path(__file__).parents[3]


class PretendedRuntime:
    """A finder of one module: that of a card's runtime."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the stand-in in place of the runtime, and leave every other module alone."""
        if name != _REAL:
            return None
        sys.path.append(str(_CHECKOUT))  # what it imports of the tests
        return spec_from_file_location(name, _CHECKOUT / "tests" / "npu" / "pretended_card.py")


sys.meta_path.insert(0, PretendedRuntime())
