"""The library's collectives: the functions, and the structures that they take (collectives.h)."""

import ctypes
from ctypes import c_char, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any, ClassVar, Final

CAUSE_BYTES: Final = 1024
"""`kCauseBytes` of collective_segment.h."""
_P, _I = c_void_p, c_int64


class WorldArgs(ctypes.Structure):
    """`WorldArgs` of collective_segment.h."""

    _fields_: ClassVar[Any] = (
        ("rank", _I),
        ("size", _I),
        ("num_groups", _I),
        ("group_sizes", _P),
        ("group_ranks", _P),
        ("slot_bytes", _I),
        ("timeout_ms", _I),
        ("endless_ms", _I),
        ("spin_us", _I),
    )


class RankHeader(ctypes.Structure):
    """`RankHeader` of collective_segment.h, where it lies."""

    _fields_: ClassVar[Any] = (
        ("state", c_uint32),
        ("pid", _I),
        ("start_time", c_uint64),
        ("digest", c_uint64),
        ("culprit", _I),
        ("cause_length", _I),
        ("cause", c_char * CAUSE_BYTES),
    )

    pid: int
    culprit: int
    cause_length: int

    @property
    def cause_text(self) -> str:
        """What this rank found, if it has found a fault; cut where it was too long."""
        at = ctypes.addressof(self) + RankHeader.cause.offset
        return ctypes.string_at(at, self.cause_length).decode(errors="ignore")


class RecordedCallArgs(ctypes.Structure):
    """`RecordedCall` of kernels.cpp."""

    _fields_: ClassVar[Any] = (
        ("order", _I),
        ("lane", _I),
        ("number", _I),
        ("operation", _I),
        ("type", _I),
        ("root", _I),
        ("bytes", _I),
    )

    order: int
    lane: int
    number: int
    operation: int
    type: int
    root: int
    bytes: int


_PROTOTYPES: Final[dict[str, tuple[list[Any], Any]]] = {
    "world_bytes": ([_P], _I),
    "world_open": ([_P, _P], _P),
    "world_join": ([_P, _I, c_uint64, _I], _I),
    "world_close": ([_P, _I], None),
    "world_abort": ([_P, _I, ctypes.c_char_p, _I], None),
    "world_expect": ([_P, _I], None),
    "world_longest_work": ([_P], _I),
    "world_listen": ([_P, _I, _I, _I], _I),
    "world_stop_listening": ([_P], None),
    "world_failed": ([_P], _I),
    "world_rank": ([_P, _I], ctypes.POINTER(RankHeader)),
    "world_records": ([_P, _I, _P], _I),
    "world_max_records": ([_P], _I),
    "all_reduce_f32": ([_P, _I, _P, _I, _I], _I),
    "all_reduce_bf16": ([_P, _I, _P, _I, _I], _I),
    "reduce_scatter_f32": ([_P, _I, _P, _P, _I, _I], _I),
    "reduce_scatter_bf16": ([_P, _I, _P, _P, _I, _I], _I),
    "all_gather": ([_P, _I, _P, _P, _I, _I], _I),
    "broadcast": ([_P, _I, _P, _I, _I, _I], _I),
    "send": ([_P, _I, _I, _P, _I, _I, _I], _I),
}


class CollectiveFunctions:
    """The functions by name, with their arguments and results declared."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions: dict[str, Any] = {}
        for name, (arguments, result) in _PROTOTYPES.items():
            function = getattr(library, f"tandem_{name}")
            function.argtypes, function.restype = arguments, result
            self._functions[name] = function

    def __call__(self, name: str) -> Any:
        """The function `tandem_<name>` of kernels.cpp."""
        return self._functions[name]
