"""Strategies that form batches: one file each, called by the scheduler as `fill`."""

from collections.abc import Callable, Mapping
from typing import Final

from tandem_engine.api.config import Strategy as StrategyName
from tandem_engine.scheduler.policies.strategies.chunked import Chunked
from tandem_engine.scheduler.policies.strategies.continuous import Continuous
from tandem_engine.scheduler.policies.strategies.splitfuse import SplitFuse
from tandem_engine.scheduler.policies.strategies.static import Dynamic, Static
from tandem_engine.scheduler.policies.strategies.strategy import Strategy, StrategyContext

STRATEGIES: Final[Mapping[StrategyName, Callable[[StrategyContext], Strategy]]] = {
    "static": Static,
    "dynamic": Dynamic,
    "continuous": Continuous,
    "chunked": Chunked,
    "splitfuse": SplitFuse,
}

__all__ = ["STRATEGIES", "Strategy", "StrategyContext"]
