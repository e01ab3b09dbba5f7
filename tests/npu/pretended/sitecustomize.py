"""Put pretended cards in the NPUs' place: Python imports this where PYTHONPATH has its folder.

Nothing is imported before a replica opens the device, so that the other programs of a pod start as
they do without it.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_CHECKOUT = Path(__file__).parents[3]
_IN_PLACE_OF = {
    "tandem_engine.device.npu.runtime": "pretended_card.py",
    "tandem_engine.parallel.hccl_backend": "pretended_hccl.py",
}


class Pretended:
    """A finder of the modules that need a card."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the stand-in in place of one of them, and leave every other module alone."""
        if name not in _IN_PLACE_OF:
            return None
        sys.path.append(str(_CHECKOUT))  # what it imports of the tests
        return spec_from_file_location(name, _CHECKOUT / "tests" / "npu" / _IN_PLACE_OF[name])


sys.meta_path.insert(0, Pretended())
