"""Memory that an operator reads and writes: by its schema, and of a KV cache by its blocks."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.pretended_device.order import Part

Touched = tuple[list[Part], list[Part]]
"""Parts that are read, and that are written."""


def touched(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Touched:
    """Return what a call touches, whose tensors are in main memory; results of its own aside."""
    name = func._schema.name
    if name in _BY_ROWS:
        return _BY_ROWS[name](*args, **kwargs)
    writes: list[Part] = []
    reads: list[Part] = []
    if is_view(func):
        return reads, writes
    for argument, value in _values(func, args, kwargs):
        is_written = argument.alias_info is not None and argument.alias_info.is_write
        (writes if is_written else reads).extend(_parts(value))
    return reads, writes


def is_view(func: Any) -> bool:
    """True where a result is memory of an argument that the call does not write."""
    return any(
        each.alias_info is not None and not each.alias_info.is_write
        for each in func._schema.returns
    )


def _values(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[Any, Any]]:
    arguments = func._schema.arguments
    by_name = {each.name: each for each in arguments}
    named = [(by_name[name], value) for name, value in kwargs.items()]
    return [*zip(arguments, args, strict=False), *named]


def _parts(*values: Any) -> list[Part]:
    return [Part(leaf) for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _index_fill(cache: Tensor, dim: int, rows: Tensor, value: Any) -> Touched:
    if dim:
        return _parts(rows, value), _parts(cache)
    return _parts(rows, value), [Part(cache, rows.long())]


def _scatter_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    **_: Any,
) -> Touched:
    caches = (cache.view(-1, *cache.shape[2:]) for cache in (key_cache, value_cache))
    return _parts(key, value, slots), [Part(cache, slots.long()) for cache in caches]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    block_table: Tensor,
    block_size: int,
    actual_seq_lengths_kv: Sequence[int],
    **others: Any,
) -> Touched:
    blocks = torch.cat(
        [
            row[: math.ceil(length / block_size)]
            for row, length in zip(block_table, actual_seq_lengths_kv, strict=True)
        ]
    ).long()
    caches = [Part(cache, blocks) for cache in (key, value)]
    return [*_parts(query, block_table, others), *caches], []


_BY_ROWS: Final[dict[str, Callable[..., Touched]]] = {
    "aten::index_fill_": _index_fill,
    "npu::npu_scatter_pa_kv_cache": _scatter_kv,
    "npu::npu_fused_infer_attention_score": _attention,
}
"""Operators of KV caches, of which streams have rows apart."""
