"""The caches of a rank: KV blocks on the device, host blocks, and graphs that read the former."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tandem_engine.device.graphs import num_spare_blocks
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.model.decoder import (
    Decoder,
    KVCache,
    allocate_host_cache,
    allocate_kv_cache,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSizes:
    """Blocks of the KV cache; every rank has as many, each of its own layers and heads.

    The schedule counts those of all dp ranks: see `kvcache.dp_pools`.
    """

    num_blocks: int
    num_host_blocks: int = 0
    """For sequences that are swapped out."""


class Caches(NamedTuple):
    """Memory in which a worker keeps sequences."""

    kv: KVCache
    host: Tensor | None
    """None: no step swaps."""


def allocate_caches(
    decoder: Decoder, layout: CacheLayout, sizes: CacheSizes, *, graph_rows: int = 0
) -> Caches:
    """Allocate the caches of a rank, and record the graphs of its steps of decodes.

    Args:
        decoder: The rank's part of the model.
        layout: Of its KV cache.
        sizes: Of the caches.
        graph_rows: Most rows of a step that graphs are recorded for; 0: none are.

    Raises:
        ConfigError: Graphs are to be recorded, and the device has none.
    """
    num_blocks = sizes.num_blocks + num_spare_blocks(graph_rows, layout.block_size)
    kv_cache = allocate_kv_cache(layout, num_blocks=num_blocks, device=decoder.device)
    host_cache = None
    if sizes.num_host_blocks:
        host_cache = allocate_host_cache(kv_cache, num_blocks=sizes.num_host_blocks)
    if graph_rows:
        with torch.inference_mode():
            decoder.record_graphs(kv_cache, max_rows=graph_rows)
    return Caches(kv_cache, host_cache)
