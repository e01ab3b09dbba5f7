"""Graphs on a device without any: operators are noted as they run, and run once more at a replay.

What is recorded is spoilt at the end, so that nothing can rest on what recording has computed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select"}
"""Operators that a card cannot record: the host waits for their results."""


@dataclass
class Call:
    """An operator that was recorded."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    made: list[tuple[int, Tensor]]
    """Results in memory of their own: their places among all, and the tensors."""

    def again(self) -> None:
        """Run it on the same memory."""
        results = tree_leaves(self.function(*self.args, **self.kwargs))
        for at, tensor in self.made:
            tensor.copy_(results[at])


@dataclass
class RecordedGraph:
    """Implements `graphs.Graph`."""

    calls: list[Call] = field(default_factory=list)
    num_replays: int = 0

    @contextmanager
    def record(self) -> Iterator[None]:
        """Note all operators."""
        with _Noted(self.calls):
            yield
        for call in self.calls:
            for _, tensor in call.made:
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)

    def replay(self) -> None:
        """Run them once more."""
        assert self.calls, "an empty graph is queued"
        self.num_replays += 1
        for call in self.calls:
            call.again()


class _Noted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, calls: list[Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        assert name not in READS, f"{name} reads from the device, which no graph can"
        results = func(*args, **(kwargs or {}))
        memory = {_memory(each) for each in tree_leaves((args, kwargs)) if _is_tensor(each)}
        made = [
            (at, each)
            for at, each in enumerate(tree_leaves(results))
            if _is_tensor(each) and _memory(each) not in memory
        ]
        self._calls.append(Call(func, args, kwargs or {}, made))
        return results


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
