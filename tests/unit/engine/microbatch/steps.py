"""Steps and prices for tests of the cut."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.microbatch.rows import StepRows

BLOCK: Final = 16
TILE: Final = 16


def prices(**changes: Any) -> CutPrices:
    """A link on which communication takes about as long as computation."""
    usual = {
        "base_s": 1e-3,
        "token_s": 1e-4,
        "pair_s": 1e-8,
        "context_s": 1e-7,
        "latency_s": 2e-5,
        "byte_s": 1e-9,
        "margin": 0.03,
        "num_collectives": 8,
        "token_bytes": 8192,
        "tile": TILE,
        "prefills": True,
        "decodes": True,
    }
    return CutPrices(**{**usual, **changes})


def step(
    *rows: tuple[int, int], whole: Sequence[int] = (), tables: Sequence[Sequence[int]] | None = None
) -> StepRows:
    """A step of rows of (tokens before, new tokens), those of one new token first.

    Args:
        rows: The rows.
        whole: Those that yield at several tokens.
        tables: Blocks of each row; None: each has its own.
    """
    queries = np.array([new for _, new in rows], dtype=np.int64)
    contexts = np.array([before + new for before, new in rows], dtype=np.int64)
    sizes = -(-contexts // BLOCK)
    if tables is None:
        blocks = np.arange(sizes.sum(), dtype=np.int32)
    else:
        found = [table[:size] for table, size in zip(tables, sizes, strict=True)]
        blocks = np.concatenate([np.array(one, dtype=np.int32) for one in found])
    longer = queries != 1
    can_be_parted = longer.copy()
    can_be_parted[list(whole)] = False
    return StepRows(
        query_lens=queries,
        context_lens=contexts,
        first_block=np.concatenate(([0], np.cumsum(sizes))),
        blocks=blocks,
        block_size=BLOCK,
        num_decode_rows=int(longer.argmax()) if longer.any() else len(queries),
        can_be_parted=can_be_parted,
    )


@st.composite
def steps(draw: st.DrawFn) -> StepRows:
    """Decode rows and chunks, some of which begin with blocks of others; some stay whole."""
    decodes = draw(st.lists(st.tuples(st.integers(0, 300), st.just(1)), max_size=6))
    chunks = draw(st.lists(st.tuples(st.integers(0, 200), st.integers(2, 300)), max_size=5))
    rows = [*decodes, *chunks]
    if not rows:
        rows = [(draw(st.integers(0, 40)), draw(st.integers(1, 40)))]
        decodes = []
    longer = [at for at, (_, new) in enumerate(rows) if new > 1]
    whole = draw(st.lists(st.sampled_from(longer), max_size=2)) if longer else []
    tables: list[list[int]] = []
    free = iter(range(10_000))
    for before, new in rows:
        size = -(-(before + new) // BLOCK)
        shared: list[int] = []
        if draw(st.booleans()) and tables:
            other = tables[draw(st.integers(0, len(tables) - 1))]
            shared = other[: draw(st.integers(0, min(len(other), before // BLOCK)))]
        tables.append([*shared, *(next(free) for _ in range(size - len(shared)))])
    return step(*rows, whole=whole, tables=tables)
