"""torch_npu's operators on the CPU, in plain torch, as their documentation describes them.

They are not our CPU kernels: tokens that agree with those show what the back end asks the
operators for. Each checks, besides, what a card refuses or gets wrong in silence, and what a meta
kernel lets pass (docs/guides/npu.md has the source of each rule).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from tests.npu.schemas import SCHEMAS

HALF: Final = (torch.float16, torch.bfloat16)
HEAD_DIM: Final = 128
LARGEST_BLOCK: Final = 1024
MOST_ROWS: Final = 4096
MOST_COLUMNS: Final = 65535
MASK: Final = 2048
CAUSAL: Final = 3
INT8_MAX: Final = 127
QINT8: Final = 12
"""torch's number of the type; the operators take types as numbers."""
_DTYPES: Final = {5: torch.float16, 6: torch.float32, 15: torch.bfloat16}

COMMUNICATORS: Final[dict[str, tuple[int, Callable[[Tensor], None]]]] = {}
"""Name of a communicator → its number of ranks, and what adds a tensor up among them in place."""

_takes_any_size: list[bool] = []


class CardError(RuntimeError):
    """A call that a card would refuse, or compute wrongly."""


@contextmanager
def any_size() -> Iterator[None]:
    """Take small heads and blocks and float32 meanwhile, which a card does not."""
    _takes_any_size.append(True)
    try:
        yield
    finally:
        _takes_any_size.pop()


@contextmanager
def operators_on_cpu() -> Iterator[None]:
    """Give the operators to the CPU meanwhile, and declare those that no package has declared."""
    library: Any = torch.library.Library("npu", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in SCHEMAS.items():
        if not hasattr(torch.ops.npu, name):
            library.define(schema.removeprefix("npu::"))
        library.impl(name, IMPLEMENTATIONS[name], "CPU")
    try:
        yield
    finally:
        library._destroy()


def npu_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """x / sqrt(mean(x²) + epsilon) * gamma, and the reciprocal of the root."""
    _require(x.numel() > 0, "nothing may be empty")
    _require(x.dtype == gamma.dtype, f"x is {x.dtype}, gamma {gamma.dtype}")
    _require(gamma.shape == x.shape[-gamma.dim() :], "gamma has not the last sizes of x")
    wide = x.float()
    reciprocal = (wide * wide).mean(dim=-1, keepdim=True).add(epsilon).rsqrt()
    return (wide * reciprocal * gamma.float()).to(x.dtype), reciprocal


def npu_add_rms_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6
) -> tuple[Tensor, Tensor, Tensor]:
    """The norm of x1 + x2, the reciprocal of its root, and the sum."""
    _require(x1.dtype == x2.dtype, f"x1 is {x1.dtype}, x2 {x2.dtype}")
    _require(x1.shape == x2.shape, "x1 and x2 have different sizes")
    total = x1 + x2
    return (*npu_rms_norm(total, gamma, epsilon), total)


def npu_swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """The first half by its sigmoid, times the second half."""
    _require(x.shape[dim] % 2 == 0, f"size {x.shape[dim]} has no half")
    gate, up = x.float().chunk(2, dim=dim)
    return (gate * torch.sigmoid(gate) * up).to(x.dtype)


def npu_rotary_mul(
    x: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """x * r1 + (-second half, first half) * r2."""
    _require(rotary_mode == "half" and rotate is None, "only halves are described here")
    _require(x.dim() == r1.dim() == r2.dim() == 4, "all have four dimensions")
    _require(x.dtype == r1.dtype == r2.dtype, f"{x.dtype}, {r1.dtype} and {r2.dtype} differ")
    batch, tokens, heads, size = x.shape
    _require(size % 2 == 0 and size < 896, f"heads of {size}: even, below 896")
    _require(batch < 1000 and heads < 1000, f"{batch} by {heads} heads: each below 1000")
    _require(r1.shape == r2.shape == (batch, tokens, 1, size), f"r1 is {tuple(r1.shape)}")
    first, second = x.float().chunk(2, dim=-1)
    return (x.float() * r1.float() + torch.cat((-second, first), -1) * r2.float()).to(x.dtype)


def npu_scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Write rows [tokens, heads, size] to slots of [blocks, block_size, heads, size]."""
    compressed = (compress_lens, compress_seq_offsets, seq_lens)
    _require(cache_mode == "Norm" and compressed == (None,) * 3, "only the plain layout is here")
    _require(key.dim() == 3 and key_cache.dim() == 4, "rows have 3 dimensions, caches 4")
    for rows, cache in ((key, key_cache), (value, value_cache)):
        _require(rows.dtype == cache.dtype, f"rows are {rows.dtype}, the cache {cache.dtype}")
        _require(rows.is_contiguous() and cache.is_contiguous(), "nothing may have gaps")
        _require(rows.shape[1:] == cache.shape[2:], "rows and slots have different sizes")
    _require(slot_mapping.dtype in (torch.int32, torch.int64), f"slots are {slot_mapping.dtype}")
    _require(slot_mapping.shape == key.shape[:1], "each row has one slot")
    slots = slot_mapping.long()
    num_slots = key_cache.shape[0] * key_cache.shape[1]
    _require(bool(((slots >= 0) & (slots < num_slots)).all()), "a slot is outside of the cache")
    _require(len(set(slots.tolist())) == len(slots), "two rows have one slot")
    for rows, cache in ((key, key_cache), (value, value_cache)):
        cache.view(num_slots, *cache.shape[2:])[slots] = rows


def npu_fused_infer_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    """Causal attention of [tokens, heads, size] over [blocks, kv_heads, block_size, size]."""
    used = {name for name, given in others.items() if given != _default(name)}
    _require(not used, f"{', '.join(sorted(used))} are not described here")
    _require(input_layout == "TND" and sparse_mode == CAUSAL, "only causal TND is described here")
    assert block_table is not None, "only paged attention is described here"
    ends, lens = list(actual_seq_lengths or ()), list(actual_seq_lengths_kv or ())
    _check_attention(query, key, value, num_heads, num_key_value_heads, block_size)
    _check_rows(query, block_table, ends, lens, block_size)
    _check_mask(atten_mask)
    out = torch.empty_like(query)
    for row, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        blocks = block_table[row, : math.ceil(lens[row] / block_size)].long()
        keys, values = (
            cache[blocks].transpose(0, 1).flatten(1, 2)[:, : lens[row]].float()
            for cache in (key, value)
        )
        out[begin:end] = _attend(query[begin:end].float(), keys, values, scale).to(query.dtype)
    return out, query.new_empty(0, dtype=torch.float32)


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """[new, heads, size] over [kv_heads, context, size] → like q; the last row sees all."""
    new, heads, size = q.shape
    kv_heads, context = keys.shape[:2]
    groups = q.view(new, kv_heads, heads // kv_heads, size)
    scores = torch.einsum("nkgd,kcd->kgnc", groups, keys) * scale
    hidden = torch.arange(context) > torch.arange(context - new, context)[:, None]
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("kgnc,kcd->nkgd", weights, values).reshape(new, heads, size)


def _check_attention(
    query: Tensor, key: Tensor, value: Tensor, heads: int, kv_heads: int, block_size: int
) -> None:
    _require(query.dim() == 3 and query.is_contiguous(), "queries are [tokens, heads, size]")
    _require(query.dtype == key.dtype == value.dtype, "queries, keys and values differ in type")
    _require(key.shape == value.shape and key.dim() == 4, "keys and values are not of one shape")
    _require(key.is_contiguous() and value.is_contiguous(), "a cache may have no gaps")
    expected = (kv_heads, block_size, query.shape[2])
    _require(tuple(key.shape[1:]) == expected, f"blocks are {tuple(key.shape[1:])}: {expected}")
    _require(query.shape[1] == heads and heads % kv_heads == 0, f"{heads} heads of {kv_heads}")
    if _takes_any_size:
        return
    _require(query.dtype in HALF, f"queries are {query.dtype}: float16 or bfloat16")
    _require(query.shape[2] == HEAD_DIM, f"heads of {query.shape[2]}: {HEAD_DIM} in TND")
    is_whole = block_size % 16 == 0 and block_size <= LARGEST_BLOCK
    _require(is_whole, f"blocks of {block_size}: a multiple of 16 up to {LARGEST_BLOCK}")


def _check_rows(
    query: Tensor, table: Tensor, ends: Sequence[int], lens: Sequence[int], block_size: int
) -> None:
    _require(0 < len(ends) == len(lens) <= MOST_ROWS, f"{len(ends)} rows, {len(lens)} lengths")
    _require(list(ends) == sorted(ends) and ends[-1] == len(query), f"{ends} do not add up")
    _require(table.dtype == torch.int32 and table.dim() == 2, f"the table is {table.dtype}")
    _require(len(table) == len(ends), f"the table has {len(table)} rows of {len(ends)}")
    _require(max(lens) <= table.shape[1] * block_size, "the table is too narrow")
    news = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    _require(all(new <= length for new, length in zip(news, lens, strict=True)), "keys are missing")


def _check_mask(mask: Tensor | None) -> None:
    assert mask is not None, "sparse_mode 3 needs a mask"
    _require(mask.dtype in (torch.bool, torch.int8, torch.uint8), f"the mask is {mask.dtype}")
    upper = torch.ones(MASK, MASK, dtype=torch.bool).triu(1)
    _require(mask.shape == upper.shape and torch.equal(mask.bool(), upper), "the mask is another")


def npu_dynamic_quant(x: Tensor, **others: Any) -> tuple[Tensor, Tensor]:
    """Each row over its largest magnitude, times 127; and that magnitude over 127."""
    used = {name for name, given in others.items() if given != _default(name)}
    _require(not used, f"{', '.join(sorted(used))} are not described here")
    _require(x.dim() > 1 and x.numel() > 0, "nothing may be empty")
    _require(x.dtype in HALF or bool(_takes_any_size), f"x is {x.dtype}: float16 or bfloat16")
    scales = x.float().abs().amax(dim=-1) / INT8_MAX
    values = x.float() / torch.where(scales == 0, 1.0, scales).unsqueeze(-1)
    return values.round().nan_to_num().to(torch.int8), scales


def npu_add_rms_norm_dynamic_quant(
    x1: Tensor, x2: Tensor, gamma: Tensor, *, epsilon: float = 1e-6, **others: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The norm of x1 + x2 with a scale a row, nothing, the sum, those scales, nothing."""
    _require(not any(others.values()), f"{', '.join(sorted(others))} are not described here")
    _require(gamma.shape == x1.shape[-1:], "gamma has one dimension")
    normed, _, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    values, scales = npu_dynamic_quant(normed)
    return values, values.new_empty(0), total, scales, scales.new_empty(0)


def npu_add_rms_norm_quant(
    x1: Tensor,
    x2: Tensor,
    gamma: Tensor,
    scales1: Tensor,
    zero_points1: Tensor | None,
    beta: Tensor | None = None,
    *,
    epsilon: float = 1e-6,
    div_mode: bool = True,
    **others: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """round(norm * scales1 + zero_points1), cut off at 8 bits; nothing; the sum."""
    used = {name for name, given in others.items() if given not in (None, -1)}
    _require(not used and beta is None, f"{', '.join(sorted(used))} are not described here")
    _require(not div_mode, "only products are described here")
    assert zero_points1 is not None
    shapes = {gamma.shape, scales1.shape, zero_points1.shape}
    _require(shapes == {x1.shape[-1:]}, "gamma, scales and zero points: one for each column")
    types = (scales1.dtype, zero_points1.dtype)
    _require(types == (torch.float32, torch.int32), f"scales and zero points are {types}")
    normed, _, total = npu_add_rms_norm(x1, x2, gamma, epsilon)
    values = (normed.float() * scales1 + zero_points1).round().clamp(-128, 127)
    return values.nan_to_num().to(torch.int8), values.new_empty(0), total


def npu_dequant_swiglu_quant(
    x: Tensor, *, activate_left: bool = False, quant_mode: int = 0, **others: Any
) -> tuple[Tensor, Tensor]:
    """The half that `activate_left` names by its sigmoid, times the other, with a scale a row."""
    used = {name for name, given in others.items() if given != _default(name)}
    _require(not used, f"{', '.join(sorted(used))} are not described here")
    _require(quant_mode == 1, "only a scale a row is described here")
    _require(x.dim() == 2, "rows have one dimension")
    first, second = x.chunk(2, dim=-1)
    return npu_dynamic_quant(npu_swiglu(x if activate_left else torch.cat((second, first), -1)))


def npu_quantize(
    x: Tensor,
    scales: Tensor,
    zero_points: Tensor | None,
    dtype: int,
    axis: int = 1,
    div_mode: bool = True,
) -> Tensor:
    """round(x * scales + zero_points), cut off at 8 bits."""
    _require(not div_mode and axis == -1, "only products along the last axis are described here")
    _require(dtype == QINT8, f"{dtype} is not qint8")
    assert zero_points is not None
    _require(x.dtype == scales.dtype == zero_points.dtype, "types differ")
    _require(scales.shape == zero_points.shape == (1,), "one scale for all")
    return (x * scales + zero_points).round().clamp(-128, 127).nan_to_num().to(torch.int8)


def npu_quant_matmul(
    x1: Tensor,
    x2: Tensor,
    scale: Tensor,
    *,
    pertoken_scale: Tensor | None = None,
    bias: Tensor | None = None,
    output_dtype: int | None = None,
    **others: Any,
) -> Tensor:
    """x1 @ x2 in 32 bits, times the scales of columns and rows, and the bias."""
    used = {name for name, given in others.items() if given != _default(name)}
    _require(not used, f"{', '.join(sorted(used))} are not described here")
    assert pertoken_scale is not None, "only scales of rows are described here"
    _require(x1.numel() > 0, "nothing may be empty")
    rows, inner = x1.shape
    _require(x1.dtype == x2.dtype == torch.int8, f"x1 is {x1.dtype}, x2 {x2.dtype}: int8")
    _require(x2.shape[0] == inner, "the inner sizes differ")
    columns = x2.shape[1]
    _require(max(inner, columns) <= MOST_COLUMNS, f"{inner} by {columns}: {MOST_COLUMNS} at most")
    _require(scale.dtype == torch.float32 and scale.shape == (columns,), "a scale a column")
    is_of_rows = pertoken_scale.dtype == torch.float32 and pertoken_scale.shape == (rows,)
    _require(is_of_rows, "a scale a row")
    if bias is not None:
        _require(bias.dtype == torch.float32 and bias.shape == (columns,), "a bias a column")
    dtype = _DTYPES[output_dtype or 0]
    _require(dtype in HALF or bool(_takes_any_size), f"the output is {dtype}")
    sums = (x1.double() @ x2.double()).float() * scale * pertoken_scale.unsqueeze(1)
    return (sums if bias is None else sums + bias).to(dtype)


def npu_mm_all_reduce_base(
    x1: Tensor,
    x2: Tensor,
    hcom: str,
    *,
    reduce_op: str = "sum",
    bias: Tensor | None = None,
    **others: Any,
) -> Tensor:
    """x1 @ x2 + bias, added up among the ranks that `hcom` names."""
    used = {name for name, given in others.items() if given != _default(name)}
    _require(not used and reduce_op == "sum", f"{', '.join(sorted(used))} are not described here")
    _require(x1.dtype == x2.dtype, f"x1 is {x1.dtype}, x2 {x2.dtype}")
    _require(x1.dtype in HALF or bool(_takes_any_size), f"x1 is {x1.dtype}: float16 or bfloat16")
    _require(x1.is_contiguous(), "x1 may not be turned")
    _require(x1.numel() > 0 and x2.numel() > 0, "nothing may be empty")
    _require(x1.shape[1] == x2.shape[0], "the inner sizes differ")
    _require(bias is None or bias.dtype == x1.dtype, "the bias has the type of x1")
    num_ranks, add_up = COMMUNICATORS[hcom]
    _require(num_ranks in (1, 2, 4, 8), f"{num_ranks} ranks: 1, 2, 4 or 8")
    product = x1.float() @ x2.float()
    total = (product if bias is None else product + bias.float()).to(x1.dtype)
    add_up(total)
    return total


def _default(name: str) -> Any:
    """The value that an argument of these operators has if it is left out."""
    defaults = {
        "pre_tokens": 2**31 - 1,
        "next_tokens": 2**31 - 1,
        "inner_precise": 0,
        "antiquant_mode": 0,
        "key_antiquant_mode": 0,
        "value_antiquant_mode": 0,
        "softmax_lse_flag": False,
        "quant_mode": "pertoken",
        "dst_type_max": 0.0,
        "antiquant_group_size": 0,
        "comm_turn": 0,
        "comm_quant_mode": 0,
        "swiglu_mode": 0,
        "clamp_limit": 7.0,
        "glu_alpha": 1.702,
        "glu_bias": 1.0,
    }
    return defaults.get(name)


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise CardError(sentence)


IMPLEMENTATIONS: Final[dict[str, Callable[..., Any]]] = {
    "npu_add_rms_norm": npu_add_rms_norm,
    "npu_add_rms_norm_dynamic_quant": npu_add_rms_norm_dynamic_quant,
    "npu_add_rms_norm_quant": npu_add_rms_norm_quant,
    "npu_dequant_swiglu_quant": npu_dequant_swiglu_quant,
    "npu_dynamic_quant": npu_dynamic_quant,
    "npu_fused_infer_attention_score": npu_fused_infer_attention_score,
    "npu_mm_all_reduce_base": npu_mm_all_reduce_base,
    "npu_quant_matmul": npu_quant_matmul,
    "npu_quantize": npu_quantize,
    "npu_rms_norm": npu_rms_norm,
    "npu_rotary_mul": npu_rotary_mul,
    "npu_scatter_pa_kv_cache": npu_scatter_pa_kv_cache,
    "npu_swiglu": npu_swiglu,
}
