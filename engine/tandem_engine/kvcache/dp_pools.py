"""The pools of several dp ranks: equal shares of one range of block ids."""

from tandem_engine.kvcache.host import HostPool
from tandem_engine.kvcache.pool import BlockPool


def dp_pools(dp: int, num_blocks: int, block_size: int) -> tuple[BlockPool, ...]:
    """Return a pool for each dp rank; rank r has the ids r·num_blocks … (r+1)·num_blocks−1.

    Args:
        dp: Number of dp ranks.
        num_blocks: Blocks of each.
        block_size: Tokens in a block.
    """
    return tuple(BlockPool(num_blocks, block_size, first=rank * num_blocks) for rank in range(dp))


def dp_host_pools(dp: int, num_blocks: int) -> tuple[HostPool, ...]:
    """Return the host blocks of each dp rank, numbered likewise.

    Args:
        dp: Number of dp ranks.
        num_blocks: Host blocks of each; 0 where nothing is swapped.
    """
    return tuple(HostPool(num_blocks, first=rank * num_blocks) for rank in range(dp))
