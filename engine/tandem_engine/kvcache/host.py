"""The holders of host memory blocks, for the KV blocks of swapped-out sequences."""

from typing import ClassVar

from tandem_engine.kvcache.pool import CountedBlocks


class HostPool(CountedBlocks):
    """Block ids in host memory (MindIE cpuMemSize), each of the size of a KV block.

    A pre-empted sequence that is swapped, not recomputed (MindIE maxPreemptCount), holds as many
    of them as it held KV blocks. Nothing is shared and nothing is found here by content.

    Args:
        num_blocks: Blocks that the host memory holds; 0 where nothing is swapped.
        first: The lowest id.
    """

    kind: ClassVar[str] = "host"


def dp_host_pools(dp: int, num_blocks: int) -> tuple[HostPool, ...]:
    """Return the host blocks of each dp rank, numbered as those of `pool.dp_pools`.

    Args:
        dp: Number of dp ranks.
        num_blocks: Host blocks of each; 0 where nothing is swapped.
    """
    return tuple(HostPool(num_blocks, first=rank * num_blocks) for rank in range(dp))
