"""Find the compiled kernels, choose the variant that suits this CPU, and load it."""

import ctypes
import logging
import platform
import re
from collections.abc import Callable, Mapping
from ctypes import c_double, c_float, c_int64, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import torch

from tandem_engine.api.errors import ConfigError
from tandem_engine.device.cpu.native.build import (
    LIBRARIES,
    library_name,
    needed_gcc,
    sources_hash,
    variants,
)
from tandem_engine.device.cpu.native.collectives import CollectiveFunctions
from tandem_engine.device.cpu.threads.cores import ThreadPlan

_LOG = logging.getLogger(__name__)

REFERENCE: Final = "reference"
"""Choice of no native kernels at all."""
AUTO: Final = "auto"

_AVX512: Final = frozenset(
    ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni")
)
_ARMV8_2: Final = frozenset(("atomics", "asimdrdm", "crc32"))
NEEDED_FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "amx": _AVX512 | {"amx_tile", "amx_bf16", "amx_int8"},
    "avx512": _AVX512,
    "avx2": frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe", "abm")),
    "neon-bf16": _ARMV8_2 | {"asimddp", "bf16", "i8mm"},
    "neon-dotprod": _ARMV8_2 | {"asimddp"},
    "portable": frozenset(),
}
"""Variant → flags of /proc/cpuinfo that its instructions need."""

KINDS: Final = {torch.float32: "f32", torch.bfloat16: "bf16"}
"""Type of activations → suffix of the kernels' names."""
WEIGHT_KINDS: Final = {**KINDS, torch.float16: "f16"}
"""Type of weights, and of caches that are not in 8 bits → the same."""

_P, _I, _F = c_void_p, c_int64, c_float
_PROTOTYPES: Final[dict[str, tuple[list[Any], Any]]] = {
    "linear_int8": ([_P, _P, _I, _P, _P, _P], None),
    "rms_norm": ([_P, _I, _P, _I, _I, _F, _P], None),
    "add_rms_norm": ([_P, _P, _P, _I, _I, _F, _P, _P], None),
    "silu_mul": ([_P, _I, _I, _P], None),
    "prepare_attention_kv8": ([_P, _I, _I, _P, _P, _F, _P, _P], None),
    "attend_kv8": ([_P, _I, _I, _P, _P, _F, _P], None),
    "quantize": ([_P, _I, _I, _P, _P, _P], None),
    "quantize_norm": ([_P, _P, _I, _I, _F, _P, _P, _P], None),
    "quantize_gated": ([_P, _I, _I, _P, _P, _P], None),
}
"""Function of activations → its arguments and its result, as in kernels.cpp."""
_WEIGHT_PROTOTYPES: Final[dict[str, tuple[list[Any], Any]]] = {
    "linear": ([_P, _I, _P, _P, _P], None),
    "pack": ([_P, _I, _I, _I, _P], None),
    "unpack_rows": ([_P, _P, _I, _P], None),
    "prepare_attention": ([_P, _I, _I, _P, _P, _F, _P, _P], None),
    "attend": ([_P, _I, _I, _P, _P, _F, _P], None),
    "activations": ([_P, _I], _I),
    "forward": ([_P, _P], None),
    "begin": ([_P, _P], _P),
    "stage": ([_P, _P], None),
    "end": ([_P], None),
}
"""The same of weights or of a cache."""


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Type of activations where weights are of `dtype`: `Computed` of vectors.h."""
    return torch.float32 if dtype == torch.float16 else dtype


class WeightArgs(ctypes.Structure):
    """`Weight` of linear.h."""

    _fields_: ClassVar[Any] = (("panels", _P), ("bias", _P), ("inputs", _I), ("outputs", _I))


class InputArgs(ctypes.Structure):
    """`Input` of linear_int8.h."""

    _fields_: ClassVar[Any] = (("scale", c_double), ("zero", _I))


class Int8WeightArgs(ctypes.Structure):
    """`Int8Weight` of linear_int8.h."""

    _fields_: ClassVar[Any] = (
        ("panels", _P),
        ("scales", _P),
        ("sums", _P),
        ("bias", _P),
        ("inputs", _I),
        ("outputs", _I),
        ("input", InputArgs),
    )


class LinearArgs(ctypes.Structure):
    """`Linear` of forward.h; one of the two is all zeros."""

    _fields_: ClassVar[Any] = (("in_float", WeightArgs), ("in_int8", Int8WeightArgs))


class CacheArgs(ctypes.Structure):
    """`LayerCache` of elementwise.h."""

    _fields_: ClassVar[Any] = (
        ("keys", _P),
        ("values", _P),
        ("kv_heads", _I),
        ("block_size", _I),
        ("head_dim", _I),
    )


class TokenSlotsArgs(ctypes.Structure):
    """`TokenSlots` of elementwise.h."""

    _fields_: ClassVar[Any] = (
        ("rope", _P),
        ("positions", _P),
        ("blocks", _P),
        ("offsets", _P),
        ("tokens", _I),
    )


class RowsArgs(ctypes.Structure):
    """`Rows` of attention.h."""

    _fields_: ClassVar[Any] = (
        ("starts", _P),
        ("contexts", _P),
        ("first_block", _P),
        ("blocks", _P),
        ("count", _I),
    )


class LayerArgs(ctypes.Structure):
    """`Layer` of forward.h."""

    _fields_: ClassVar[Any] = (
        ("attention_norm", _P),
        ("qkv", LinearArgs),
        ("q_norm", _P),
        ("k_norm", _P),
        ("output", LinearArgs),
        ("mlp_norm", _P),
        ("gate_up", LinearArgs),
        ("down", LinearArgs),
    )


class ModelArgs(ctypes.Structure):
    """`Model` of forward.h."""

    _fields_: ClassVar[Any] = (
        ("num_layers", _I),
        ("hidden", _I),
        ("intermediate", _I),
        ("heads", _I),
        ("kv_heads", _I),
        ("head_dim", _I),
        ("eps", c_double),
        ("scale", c_double),
        ("rope", _P),
        ("embedding", _P),
        ("norm", _P),
        ("head", LinearArgs),
        ("layers", _P),
        ("first_token", _I),
        ("num_tokens", _I),
    )


class StageArgs(ctypes.Structure):
    """`Stage` of forward.h."""

    _fields_: ClassVar[Any] = (
        ("kind", _I),
        ("layer", _I),
        ("is_normed", _I),
        ("has_residual", _I),
        ("first_row", _I),
        ("rows", _I),
    )


class StepArgs(ctypes.Structure):
    """`Step` of forward.h."""

    _fields_: ClassVar[Any] = (
        ("slots", TokenSlotsArgs),
        ("rows", RowsArgs),
        ("token_ids", _P),
        ("logits_rows", _P),
        ("num_logits_rows", _I),
        ("cache", _P),
        ("num_blocks", _I),
        ("block_size", _I),
        ("is_cache_int8", _I),
        ("num_rows", _I),
        ("activations", _P),
        ("logits", _P),
    )


class SampledRowArgs(ctypes.Structure):
    """`SampledRow` of sampling_workspace.h."""

    _fields_: ClassVar[Any] = (
        ("temperature", c_double),
        ("margin", c_double),
        ("top_p", c_double),
        ("top_k", _I),
        ("seed", c_uint64),
        ("position", _I),
        ("num_logprobs", _I),
        ("repetition", c_double),
        ("frequency", c_double),
        ("presence", c_double),
        ("biased", _P),
        ("biases", _P),
        ("num_biased", _I),
        ("seen", _P),
        ("counts", _P),
        ("num_seen", _I),
        ("banned", _P),
        ("num_banned", _I),
    )


class SamplingArgs(ctypes.Structure):
    """`Sampling` of sampling.h."""

    _fields_: ClassVar[Any] = (
        ("logits", _P),
        ("sampled_rows", _P),
        ("rows", _I),
        ("vocab", _I),
        ("tokens", _P),
        ("logprobs", _P),
        ("max_top", _I),
        ("top_ids", _P),
        ("top_logprobs", _P),
        ("workspaces", _P),
        ("num_workspaces", _I),
    )


class Library:
    """The kernels of one variant, by name and dtype."""

    def __init__(self, variant: str, library: ctypes.CDLL) -> None:
        self.variant = variant
        self._panel = int(library.tandem_panel())
        self.pack_int8 = _declared(library, "tandem_pack_int8", [_P, _I, _I, _I, _P, _P], None)
        self.read = _declared(library, "tandem_read", [_P, _I], _F)
        """Sums floats: as fast as memory is read. For benchmarks."""
        self.collectives = CollectiveFunctions(library)
        self.sample = _declared(library, "tandem_sample", [_P], None)
        self.sampling_workspace = _declared(library, "tandem_sampling_workspace", [_I], _I)
        self._num_threads = _declared(library, "tandem_num_threads", [], _I)
        self._set_threads = _declared(library, "tandem_set_threads", [_I, _P, _I, _I], None)
        self._functions = {
            (name, dtype): _declared(library, f"tandem_{name}_{kind}", *prototype)
            for prototypes, kinds in ((_PROTOTYPES, KINDS), (_WEIGHT_PROTOTYPES, WEIGHT_KINDS))
            for name, prototype in prototypes.items()
            for dtype, kind in kinds.items()
        }

    def __call__(self, name: str, dtype: torch.dtype) -> Any:
        """The kernel `name` for `dtype`: one of KINDS; of WEIGHT_KINDS where it reads weights."""
        return self._functions[name, dtype]

    def padded(self, outputs: int) -> int:
        """Round outputs up to whole panels."""
        return -(-outputs // self._panel) * self._panel

    @property
    def num_threads(self) -> int:
        """Threads that compute each call, the caller's among them; 1 until `use_threads`."""
        return int(self._num_threads())

    def use_threads(self, plan: ThreadPlan) -> None:
        """Apply a plan from the next call on, in the whole process; its children are not pinned."""
        cpus = (c_int64 * len(plan.cpus))(*plan.cpus)
        self._set_threads(plan.num_threads, cpus, len(plan.cpus), plan.own)


def _declared(library: ctypes.CDLL, name: str, arguments: list[Any], result: Any) -> Any:
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, result
    return function


@cache
def may_use_tiles() -> bool:
    """Ask the kernel for AMX's tiles, which a process has to do once (Linux 5.16 or newer)."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return int(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)) == 0


def runnable_variants(
    cpuinfo: Path = Path("/proc/cpuinfo"),
    may_use_tiles: Callable[[], bool] = may_use_tiles,
    machine: str = platform.machine(),
) -> list[str]:
    """The variants that this CPU has the instructions for, best first."""
    flags = _cpu_flags(cpuinfo)
    return [
        name
        for name in variants(machine)
        if flags >= NEEDED_FLAGS[name] and (name != "amx" or may_use_tiles())
    ]


def _cpu_flags(cpuinfo: Path) -> set[str]:
    try:
        text = cpuinfo.read_text()
    except OSError:
        return set()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return set(match[1].split()) if match else set()


@cache
def load_library(choice: str = AUTO, folder: Path = LIBRARIES) -> Library | None:
    """The kernels to use, or None for the reference; warns once where they are missing.

    Args:
        choice: A variant, `reference`, or `auto` for the best that this CPU can run.
        folder: Where the libraries are.

    Raises:
        ConfigError: There is no such variant, or this CPU cannot run it.
    """
    if choice == REFERENCE:
        _LOG.warning(
            "TANDEM_KERNELS is '%s', so the engine computes in plain torch, several times slower; "
            "unset it for the native kernels.",
            REFERENCE,
        )
        return None
    runnable = runnable_variants()
    if choice not in (AUTO, *runnable):
        raise ConfigError(
            f"TANDEM_KERNELS is '{choice}'; on this CPU it can be "
            f"{', '.join((AUTO, *runnable, REFERENCE))}."
        )
    sources = sources_hash()
    for variant in runnable if choice == AUTO else [choice]:
        path = folder / library_name(variant, sources)
        if path.is_file():
            return _opened(variant, path)
    _LOG.warning(
        "There are no native kernels in %s for this version, so the engine computes in plain "
        "torch, several times slower. Install g++ %d or newer, then run "
        "`python -m tandem_engine.device.cpu.native.build`.",
        folder,
        needed_gcc(),
    )
    return None


def _opened(variant: str, path: Path) -> Library | None:
    try:
        return Library(variant, ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        _LOG.warning(
            "The native kernels do not load (%s), so the engine computes in plain torch, several "
            "times slower. Build them on this machine: "
            "`python -m tandem_engine.device.cpu.native.build`.",
            error,
        )
        return None
