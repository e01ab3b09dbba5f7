"""What a decode step asks of a card: operators a layer and bytes, counted from the back end itself.

Counts, and arithmetic on them; no card has run a step.
"""

from collections import Counter
from dataclasses import replace
from typing import Any, Final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.npu.meta_model import LINEARS, MakeLinear, Sizes, compute, decoder_of

MODEL: Final = Sizes(5120, 40, 8, 17408, 151936, tp=2)
"""Qwen3-14B on two cards."""
NUM_LAYERS: Final = 40
"""Of the model."""
ROWS: Final = 16
CONTEXT: Final = 1024
BYTES_A_SECOND: Final = 1.6e12
"""Of an Atlas A2's memory (Ascend 910B, 64 GiB), by its data sheet."""

_IN_PLACE_OF_TABLES: Final = {
    "npu_fused_infer_attention_score": ("key", "value"),
    "npu_scatter_pa_kv_cache": ("key_cache", "value_cache"),
    "index_select": ("self",),
    "embedding": ("weight",),
    "index_fill_": ("self",),
}
"""Operators that read or write a part of a table, and the tables."""


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operators that a card would be given, and the bytes that these read and write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        result = func(*args, **(kwargs or {}))
        if not _only_looks(func) and _is_on_card(result, args):
            name = func._opname
            self.counts[name] += 1
            self.num_bytes[name] += _bytes_of(func, args, kwargs or {}, result)
        return result


def _only_looks(func: Any) -> bool:
    """True for views, and for memory that is taken and not written."""
    returns = [each.alias_info for each in func._schema.returns]
    is_view = any(info is not None and not info.is_write for info in returns)
    return is_view or func._opname.startswith(("empty", "new_empty", "detach"))


def _is_on_card(result: object, args: object) -> bool:
    tensors = [each for each in tree_leaves((result, args)) if isinstance(each, Tensor)]
    return any(each.device.type == "meta" for each in tensors)


def _bytes_of(func: Any, args: Any, kwargs: Any, result: object) -> int:
    names = [each.name for each in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    tables = _IN_PLACE_OF_TABLES.get(func._opname, ())
    moved = [value for name, value in given.items() if name not in tables]
    if not tables:
        return _size(moved) + _size(result)
    if func._opname == "npu_fused_infer_attention_score":
        key = given["key"]
        a_token = 2 * key.shape[1] * key.shape[3] * key.element_size()
        context: int = a_token * sum(given["actual_seq_lengths_kv"])
        return _size(moved) + _size(result) + context
    # What is read of a table is as large as what is written, and the reverse.
    return _size(moved) + 2 * _size(result if func._opname != "index_fill_" else None)


def _size(tree: object) -> int:
    tensors = [each for each in tree_leaves(tree) if isinstance(each, Tensor)]
    return sum(each.numel() * each.element_size() for each in tensors)


def step_costs() -> dict[str, Any]:
    """Return the costs of a decode step of 16 rows by the kind of linear layers."""
    return {name: _costs_of(linear) for name, linear in LINEARS.items()}


def _costs_of(linear: MakeLinear) -> dict[str, Any]:
    """A layer's are the difference that one more layer makes."""
    (two, bytes_of_two), (three, bytes_of_three) = (_launches(linear, layers) for layers in (2, 3))
    layer = three.counts - two.counts
    layer_bytes = three.num_bytes.total() - two.num_bytes.total()
    more = NUM_LAYERS - 2
    step_bytes = two.num_bytes.total() + more * layer_bytes
    return {
        "layer": dict(sorted(layer.items())),
        "launches a layer": layer.total(),
        "launches a step": two.counts.total() + more * layer.total(),
        "GB a step": round(step_bytes / 1e9, 2),
        "MB exchanged": round(
            (sum(bytes_of_two) + more * (sum(bytes_of_three) - sum(bytes_of_two))) / 1e6, 1
        ),
        "ms by bandwidth": round(step_bytes / BYTES_A_SECOND * 1e3, 1),
    }


def _launches(linear: MakeLinear, layers: int) -> tuple[Launches, list[int]]:
    decoder = decoder_of(replace(MODEL, layers=layers), linear)
    with Launches() as launches:
        others = compute(decoder, decodes=ROWS, chunk=0, context=CONTEXT)
    return launches, others.num_bytes
