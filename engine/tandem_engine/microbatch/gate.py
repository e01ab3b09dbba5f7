"""The gate: decides on rank 0 whether steps are cut now, by what cut steps were measured to bring.

Steps with prefill and steps of decodes alone have a gate each. A gate that is open only lets steps
be cut that are predicted to gain; it shuts when the measured ones, over a window, hide little or
are no faster than whole ones, and before the window is full when that is beyond doubt. It opens
again when the load is another one, or for a trial, each of which comes after twice as many steps as
the one before. Pure: time and measurements are arguments.
"""

from collections import deque
from collections.abc import Mapping
from math import fsum, sqrt
from typing import Final, Literal

from tandem_engine.api.micro_batch_stats import GateState, Phase
from tandem_engine.microbatch.learned import LearnedPrices
from tandem_engine.microbatch.overlap import StepOverlap, StepShape
from tandem_engine.microbatch.prices import CutPrices

WINDOW: Final = 32
"""Cut steps that a gate judges by, the last ones."""
EARLY: Final = (4, 8, 16)
"""Counts of cut steps at which a gate that has just opened is judged before its window is full."""
LEAST_OVERLAP: Final = 0.3
FIRST_TRIAL: Final = 256
"""Steps of its phase that a gate which has shut lets pass before a trial."""
LAST_TRIAL: Final = 2**16
OTHER_LOAD: Final = 2.0
"""Times that a step's tokens, or its communication over its computation, are off."""
MARGIN: Final = 0.03
TILE: Final = 16

_KEPT: Final = 1.0 - 1.0 / WINDOW
_FAIR_LOSS: Final = 0.02
"""Error of a mean over the window, as a share: of what cut steps take beside whole ones."""


class _Load:
    """Means of the last steps: tokens, and communication over computation."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.tokens = self.ratio = 0.0

    def add(self, shape: StepShape, measured: StepOverlap) -> None:
        kept = _KEPT if self.num_steps else 0.0
        ratio = measured.communication_s / max(measured.compute_s, 1e-9)
        self.tokens += (1.0 - kept) * (shape.num_tokens - self.tokens)
        self.ratio += (1.0 - kept) * (ratio - self.ratio)
        self.num_steps += 1

    def differs_from(self, other: "_Load") -> str | None:
        """Return what is off by `OTHER_LOAD`; None: nothing is, or too few steps were seen."""
        if self.num_steps < WINDOW or other.num_steps < WINDOW:
            return None
        if _is_off(self.tokens, other.tokens):
            return f"steps have {self.tokens:.0f} tokens, not {other.tokens:.0f}"
        if _is_off(self.ratio, other.ratio):
            return f"communication is {self.ratio:.2f} of computation, not {other.ratio:.2f}"
        return None


def _is_off(load: float, other: float) -> bool:
    return max(load, other) > OTHER_LOAD * min(load, other)


class _PhaseGate:
    """The gate of one phase."""

    def __init__(self, state: GateState) -> None:
        self.state = state
        # The last cut steps, with what each would have taken as a whole.
        self._window: deque[tuple[StepOverlap, float]] = deque(maxlen=WINDOW)
        self._trial_after = FIRST_TRIAL
        self._num_shut = 0
        self._load = _Load()
        self._load_when_shut = _Load()

    def cut(self, shape: StepShape, measured: StepOverlap, whole_s: float) -> bool:
        """Note a step that was cut and would have taken `whole_s`; return True if it shuts."""
        self._load.add(shape, measured)
        if not self.state.is_open:
            # It was on its way when the gate shut.
            return False
        self._window.append((measured, whole_s))
        if len(self._window) < WINDOW and len(self._window) not in EARLY:
            return False
        reason = self._poor()
        if reason is None:
            if len(self._window) == WINDOW:
                self._trial_after = FIRST_TRIAL
            return False
        self._window.clear()
        self.state = GateState(is_open=False, reason=reason)
        self._num_shut = 0
        self._load_when_shut, self._load = self._load, _Load()
        return True

    def whole(self, shape: StepShape, measured: StepOverlap) -> bool:
        """Note a step that was not cut; return True if the gate opens."""
        self._load.add(shape, measured)
        if self.state.is_open:
            return False
        self._num_shut += 1
        if change := self._load.differs_from(self._load_when_shut):
            return self._open(f"the load has changed: {change}")
        if self._num_shut < self._trial_after:
            return False
        self._trial_after = min(2 * self._trial_after, LAST_TRIAL)
        return self._open(f"a trial after {self._num_shut} whole steps")

    def _open(self, reason: str) -> bool:
        self.state = GateState(is_open=True, reason=reason)
        return True

    def _poor(self) -> str | None:
        """Return why the window is poor; None: it is not, or has too few steps to say so."""
        count = len(self._window)
        # The error of a mean over few steps is larger than that of one over many.
        doubt = sqrt(WINDOW / count)
        hidden = fsum(step.hidden_s for step, _ in self._window)
        hideable = fsum(step.hideable_s for step, _ in self._window)
        overlap = hidden / hideable if hideable > 0.0 else 0.0
        if overlap < LEAST_OVERLAP / doubt:
            return f"overlap {overlap:.2f} in the last {count} cut steps"
        seconds = fsum(step.seconds for step, _ in self._window)
        whole = max(fsum(whole for _, whole in self._window), 1e-9)
        if seconds / whole - 1.0 > _FAIR_LOSS * (doubt - 1.0):
            return f"{count} cut steps took {seconds / whole:.2f} of the time of whole ones"
        return None


class MicroBatchGate:
    """Both gates, and the prices that ranks cut by while one of them is open.

    Args:
        num_collectives: Of a step that is not cut.
        token_bytes: Bytes of a token in one collective.
        tile: Tokens at a multiple of which a chunk is parted.
        margin: The least share of its time that a step must be predicted to gain.
    """

    def __init__(
        self,
        *,
        num_collectives: int,
        token_bytes: int,
        tile: int = TILE,
        margin: float = MARGIN,
    ) -> None:
        self._num_collectives = num_collectives
        self._token_bytes = token_bytes
        self._tile = tile
        self._margin = margin
        self._learned = LearnedPrices()
        self._gates: dict[Phase, _PhaseGate] = {
            "prefill": _PhaseGate(GateState(is_open=True, reason="nothing speaks against it yet")),
            "decode": _PhaseGate(GateState(is_open=False, reason="it is not known to pay")),
        }
        self._prices: CutPrices | None = None

    def prices(self) -> CutPrices | None:
        """Return what the next step is cut by; None: no step is cut. The same until it changes."""
        return self._prices

    def states(self) -> Mapping[Phase, GateState]:
        """Return the state of each phase's gate."""
        return {phase: gate.state for phase, gate in self._gates.items()}

    def observe(
        self, phase: Phase, shape: StepShape, measured: StepOverlap, *, is_cut: bool
    ) -> None:
        """Learn from a step that rank 0 has computed.

        Args:
            phase: decode of a step without prefill.
            shape: Its sizes, on which its times depend.
            measured: Those times.
            is_cut: True if it was in two halves.
        """
        has_changed = self._learned.add(shape, measured)
        gate = self._gates[phase]
        if is_cut:
            has_changed |= gate.cut(shape, measured, self._learned.whole_seconds(shape))
        else:
            has_changed |= gate.whole(shape, measured)
        if has_changed:
            self._prices = self._priced()

    def _priced(self) -> CutPrices | None:
        is_open: Mapping[Literal["prefill", "decode"], bool] = {
            phase: gate.state.is_open for phase, gate in self._gates.items()
        }
        if not self._learned.is_known or not any(is_open.values()):
            return None
        base_s, token_s, pair_s, context_s = self._learned.compute
        latency_s, byte_s = self._learned.link
        return CutPrices(
            base_s=base_s,
            token_s=token_s,
            pair_s=pair_s,
            context_s=context_s,
            latency_s=latency_s,
            byte_s=byte_s,
            margin=self._margin,
            num_collectives=self._num_collectives,
            token_bytes=self._token_bytes,
            tile=self._tile,
            prefills=is_open["prefill"],
            decodes=is_open["decode"],
        )
