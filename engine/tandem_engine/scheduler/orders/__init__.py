"""The orders in which sequences start, go on, and lose their blocks."""

from collections.abc import Mapping
from typing import Final

from tandem_engine.scheduler.orders.mlfq import (
    MultiLevelFeedback,
    ShortestJobMlfq,
    SkipJoinMlfq,
)
from tandem_engine.scheduler.orders.order import Order
from tandem_engine.scheduler.orders.plain_orders import (
    ByPriority,
    ByState,
    FirstComeFirstServed,
    LongestJobFirst,
    ShortestJobFirst,
)

STAGE_ORDERS: Final[Mapping[int, Order]] = {
    0: FirstComeFirstServed(),
    1: ByState(),
    2: ByPriority(),
    3: MultiLevelFeedback(),
}
"""prefillPolicyType and decodePolicyType."""

SPLIT_FUSE_ORDERS: Final[Mapping[int, Order]] = {
    0: FirstComeFirstServed(),
    4: ShortestJobFirst(),
    5: LongestJobFirst(),
    6: SkipJoinMlfq(),
    7: ShortestJobMlfq(),
}
"""splitFuse.policyType."""

__all__ = ["SPLIT_FUSE_ORDERS", "STAGE_ORDERS", "Order"]
