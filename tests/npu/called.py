"""The operators of an NPU that code calls, in their order."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Called(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the names of those that are called within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        if func.namespace == "npu":
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))
