"""A device `npu` that torch takes for one of its own, with memory that is not the host's.

Its tensors lie in main memory and are computed at once, by torch's operators for the CPU. Besides,
it does what an accelerator does, and a host with one memory cannot show: a tensor of the host is
no argument of an operator; copies are late; and the host waits for the queue where it reads a
number, copies without pinned memory, or asks for a result whose shape depends on numbers. `QUEUE`
counts that.

Torch has one such device, for good: `install` is for a process of its own.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.pretended_device.order import Clock, Part
from tests.pretended_device.queue import DeviceError, Queue
from tests.pretended_device.touched import touched

NAME: Final = "npu"
QUEUE: Final = Queue()
_HOST: Final = torch.device("cpu")
_ATEN: Final = torch.ops.aten
_NOT_BY_FALLBACK: Final = (
    _ATEN._copy_from.default,
    _ATEN._local_scalar_dense.default,
    _ATEN._to_copy.default,
    _ATEN.copy_.default,
    _ATEN.empty.memory_format,
    _ATEN.empty_strided.default,
)
"""Operators that torch asks the device itself for."""
_READS: Final = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero"}
"""Operators whose result is a number of the host."""
_OF_ANY_SIZE: Final = {"aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2"}
"""Operators of whose result only the numbers tell the shape."""
_INDEXED: Final = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
"""Operators that a mask makes such ones, and that take indices of the host, which they copy."""
_pinned: list[Tensor] = []
_libraries: list[Any] = []


class DeviceTensor(Tensor):
    """A tensor of the device."""

    raw: Tensor
    """Its memory."""

    @staticmethod
    def __new__(cls: type[Self], raw: Tensor) -> Self:
        """Return a tensor of `raw`."""
        made: Self = Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch calls it of the class
        cls, func: Any, _: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute."""
        return _dispatch(func, *args, **(kwargs or {}))

    def tolist(self) -> Any:
        """Return its numbers, which torch gives of its own classes alone."""
        return self.cpu().tolist()


class Event:
    """A point in a stream; like `torch.Event`."""

    def __init__(self, _: torch.device | None = None, *, enable_timing: bool = False) -> None:
        self.until: Clock = {}
        self._at_s = 0.0
        self._has_time = enable_timing

    def record(self, stream: "Stream | None" = None) -> None:
        """Set it behind all that is in the stream."""
        self.until = QUEUE.order.mark((stream or current_stream()).work)
        self._at_s = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for what is before it."""
        QUEUE.wait(self.until)

    def elapsed_time(self, end: "Event") -> float:
        """Return milliseconds until `end`."""
        if not self._has_time or not end._has_time:
            raise DeviceError("an event without time is asked for it")
        return (end._at_s - self._at_s) * 1e3


class Stream:
    """A queue of its own; like `torch.Stream`."""

    def __init__(self, _: torch.device | None = None, *, keeps_memory: bool = False) -> None:
        self.work = QUEUE.order.new_stream(keeps_memory=keeps_memory)

    def __enter__(self) -> Self:
        _entered().append(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Go on in the one before."""
        _entered().pop()

    def wait_event(self, event: Event) -> None:
        """Have further work wait for it."""
        self.work.comes_behind(event.until)

    def synchronize(self) -> None:
        """Wait for all that is in it."""
        QUEUE.wait(QUEUE.order.mark(self.work))


_DEFAULT: Final = Stream()
_of_thread: Final = threading.local()


def current_stream(_: torch.device | None = None) -> Stream:
    """Return the stream that this thread's work goes into."""
    return (_entered() or [_DEFAULT])[-1]


def _entered() -> list[Stream]:
    streams: list[Stream] = _of_thread.__dict__.setdefault("streams", [])
    return streams


def install() -> None:
    """Give this process the device, and memory that counts as pinned."""
    _setup_privateuseone_for_python_backend(NAME)
    _library("_").fallback(_dispatch, "PrivateUse1")
    of_torch = _library("aten")
    func: Any
    for func in _NOT_BY_FALLBACK:
        of_torch.impl(func.name(), partial(_dispatch, func), "PrivateUse1")
    torch.Event = Event  # type: ignore[assignment,misc]
    torch.Stream = Stream  # type: ignore[assignment,misc]
    torch.accelerator.current_stream = current_stream  # type: ignore[assignment]
    for name in ("empty", "zeros"):
        setattr(torch, name, partial(_made, getattr(torch, name)))
    Tensor.pin_memory = _pinned_copy  # type: ignore[assignment,method-assign]


def _library(namespace: str) -> Any:
    library = torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)  # What it has registered goes when it goes.
    return library


def _made(
    make: Callable[..., Tensor], *sizes: Any, pin_memory: bool = False, **others: Any
) -> Tensor:
    tensor = make(*sizes, **others)
    return _pin(tensor) if pin_memory else tensor


def _pinned_copy(tensor: Tensor) -> Tensor:
    return _pin(tensor.clone())


def _pin(tensor: Tensor) -> Tensor:
    _pinned.append(tensor)  # so that no other tensor ever has its memory
    return tensor


def _is_pinned(tensor: Tensor) -> bool:
    begin = tensor.untyped_storage().data_ptr()
    return any(pinned.data_ptr() == begin for pinned in reversed(_pinned))


def _dispatch(func: Any, *args: Any, **kwargs: Any) -> Any:
    if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return func.decompose(*args, **kwargs)
    name = func._schema.name
    if name == "aten::copy_":
        return _copy(*args, **kwargs)
    if name == "aten::_to_copy":
        return _to_copy(*args, **kwargs)
    stream = current_stream()
    if name in _READS or name in _OF_ANY_SIZE or (name in _INDEXED and _asks_host(args[1])):
        stream.synchronize()
    if name not in _INDEXED:
        _check_is_of_device(name, tree_leaves((args, kwargs)))
    raw_args, raw_kwargs = tree_map(_raw, args), tree_map(_raw, kwargs)
    QUEUE.order.put(stream.work, name, *touched(func, raw_args, raw_kwargs))
    result = func(*raw_args, **raw_kwargs)
    if name in _READS:
        return result
    with _mode_of_views(func, args):
        return tree_map(partial(_wrapped, args), result)


def _asks_host(indices: Sequence[Tensor | None]) -> bool:
    """True for masks, and for indices that have to be copied first."""
    return any(
        each.dtype in (torch.bool, torch.uint8) or not isinstance(each, DeviceTensor)
        for each in indices
        if each is not None
    )


def _check_is_of_device(name: str, leaves: Sequence[Any]) -> None:
    for each in leaves:
        # A single number goes with the call.
        if isinstance(each, Tensor) and not isinstance(each, DeviceTensor) and each.dim():
            raise DeviceError(f"{name} has an argument {tuple(each.shape)} that is on the host")


def _raw(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return value.raw
    return _HOST if isinstance(value, torch.device) else value


def _wrapped(args: Sequence[Any], value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    for each in args:
        # Changed in place, it is the argument itself.
        if isinstance(each, DeviceTensor) and each.raw is value:
            return each
    return _new(value)


def _new(raw: Tensor) -> DeviceTensor:
    QUEUE.order.makes(current_stream().work, raw)
    return DeviceTensor(raw)


def _mode_of_views(func: Any, args: Sequence[Any]) -> AbstractContextManager[Any]:
    """Have a view be an inference tensor if what it is of is one, as torch wants it."""
    is_of_argument = any(of.alias_info is not None for of in func._schema.returns)
    if not is_of_argument or not isinstance(args[0], DeviceTensor):
        return nullcontext()
    return torch.inference_mode(args[0].is_inference())


def _to_copy(
    tensor: Tensor,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    non_blocking: bool = False,
    **_: Any,
) -> Tensor:
    made = torch.empty_like(_raw(tensor), dtype=dtype)
    is_for_host = device is not None and torch.device(device).type == _HOST.type
    return _copy(made if is_for_host else _new(made), tensor, non_blocking)


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    stream = current_stream()
    is_for_device = isinstance(target, DeviceTensor)
    if is_for_device and isinstance(source, DeviceTensor):
        QUEUE.order.put(stream.work, "a copy", [Part(source.raw)], [Part(_raw(target))])
        _raw(target).copy_(source.raw)
    elif not non_blocking or not _is_pinned(source if is_for_device else target):
        _copy_at_once(stream, target, source)
    elif is_for_device:
        QUEUE.copy_to_device(stream.work, source, _raw(target))
    else:
        QUEUE.copy_to_host(stream.work, target, _raw(source))
    return target


def _copy_at_once(stream: Stream, target: Tensor, source: Tensor) -> None:
    of_device = [
        [Part(each.raw)] if isinstance(each, DeviceTensor) else [] for each in (source, target)
    ]
    QUEUE.order.put(stream.work, "a copy", *of_device)
    stream.synchronize()
    _raw(target).copy_(_raw(source))
