"""The policies: SplitFuse with a static chunk, and with a budget that meets an SLO. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.serving.errors import WrongUsage
from benchmarks.serving.settings import LatencyTargets
from tandem_engine.api.config import ScheduleConfig, SplitFuseConfig
from tandem_engine.api.slo import LatencyTarget, Slo

STATIC_CHUNKS: Final = (64, 128, 256, 512, 1024, 2048)
MAX_TOKEN_BUDGET: Final = 2048
"""splitChunkTokens beside an SLO: the upper bound of its budget."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to schedule."""

    name: str
    schedule: ScheduleConfig
    slo: Slo = field(default_factory=Slo)

    @property
    def is_static(self) -> bool:
        """True without an SLO."""
        return self.slo == Slo()


def static(chunk: int) -> Policy:
    """SplitFuse as it is without an SLO: first come, first served, `chunk` tokens a step."""
    return Policy(f"static {chunk}", _schedule(chunk))


def with_slo(targets: LatencyTargets, *, max_token_budget: int = MAX_TOKEN_BUDGET) -> Policy:
    """SplitFuse whose budget is chosen to meet the targets."""
    slo = Slo(ttft=_latency(targets.ttft_ms), tpot=_latency(targets.tpot_ms))
    return Policy("SLO budget", _schedule(max_token_budget), slo)


def policies_for(targets: LatencyTargets, chunks: Sequence[int] = STATIC_CHUNKS) -> list[Policy]:
    """All of them."""
    return [*map(static, chunks), with_slo(targets)]


def parse_targets(text: str) -> LatencyTargets:
    """The targets that `text` writes as TTFT/TPOT in milliseconds.

    Raises:
        WrongUsage: it is not written so.
    """
    ttft, _, tpot = text.partition("/")
    try:
        return LatencyTargets(ttft_ms=float(ttft), tpot_ms=float(tpot))
    except ValueError:
        raise WrongUsage(
            f"'{text}' is not a pair of targets; write TTFT/TPOT in milliseconds, such as 1500/50."
        ) from None


def _latency(milliseconds: float | None) -> LatencyTarget | None:
    return None if milliseconds is None else LatencyTarget(target=f"{milliseconds:g}ms")


def _schedule(chunk: int) -> ScheduleConfig:
    # splitStartBatchSize 0: prompts are cut from the first row on. No two prompts are alike here,
    # so the prefix cache would only cost time.
    return ScheduleConfig(
        template_type="Mix",
        enable_prefix_cache=False,
        split_fuse=SplitFuseConfig(split_chunk_tokens=chunk, split_start_batch_size=0),
    )
