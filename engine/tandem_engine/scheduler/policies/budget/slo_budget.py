"""The budget that keeps the TPOT target: as many prompt tokens as the decode rows can wait for.

The idea of a token budget that follows a latency bound is Sarathi-Serve's (Agrawal et al., 2024),
which picks one by a profile before serving; here it is chosen for every step, from a model
that is learnt while serving.
"""

from math import inf
from typing import Final

from tandem_engine.api.config import TILE
from tandem_engine.api.slo import Slo
from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_engine.scheduler.policies.budget.budget import BudgetView

FLOOR: Final = 2 * TILE
"""Prompt tokens below which a chunk is too small: the row's own cost and reading its context
would not pay. The step is decode-only, is shorter for it, and the slack saved buys a chunk later.
"""

AGE_SHARE: Final = 0.25
"""Share of the TTFT target that the prompts may go without tokens."""

AGE_S: Final = 1.0
"""Seconds that they may, without a TTFT target."""

AGE_IN_TPOT: Final = 20.0
"""TPOT that they may at least: making the rows late by one of them then costs 5 % of their pace."""

SAFETY: Final = 0.98
"""Share of the slack that is used. Not a quantile of the model's error: the rows' target is a mean
over many steps, in which errors cancel out, and what a step overruns the next ones make up for.
"""

CHEAP: Final = 0.05
"""Share of a step by which tokens below the model's knee may make it longer, however late the rows
are: prompts then go on for next to nothing."""


class SloBudget:
    """The largest budget whose predicted time stays within the slack of the decode rows.

    The prediction is multiplied by the model's drift, the median of its recent error. The prompt
    part is cut down to whole tiles, unless it is all that the prompts need or all that the
    maximum allows. All prompts are counted at the context of the first in line.

    A prompt that has gone without tokens beyond the age bound gets a chunk even so, which may make
    the rows late by one TPOT and is at least FLOOR: where decoding alone misses the target,
    prompts go on at a share of the time instead of waiting for ever.

    More slack never gives a smaller budget.
    """

    def __init__(self, slo: Slo, model: StepTimeModel | None = None, *, floor: int = FLOOR) -> None:
        """Choose budgets for `slo`.

        Args:
            slo: The latency targets.
            model: Predicts the time of a step; None: a new one.
            floor: Prompt tokens of the smallest chunk worth a row in a step.
        """
        self._tpot_s = inf if slo.tpot_s is None else slo.tpot_s
        age_s = AGE_S if slo.ttft_s is None else AGE_SHARE * slo.ttft_s
        self._longest_wait_s = max(age_s, 0.0 if slo.tpot_s is None else AGE_IN_TPOT * slo.tpot_s)
        self._floor = floor
        self.model = model or StepTimeModel()
        """Its predictor."""

    def choose(self, view: BudgetView) -> int:
        """Tokens of the step: the decode rows', and what fits of the prompts."""
        most = min(view.prompt_tokens, view.max_token_budget - view.decode_tokens)
        if most <= 0:
            return min(view.decode_tokens, view.max_token_budget)
        chunk = self._chunk(view, view.slack_s, most)
        if view.prompt_wait_s >= self._longest_wait_s:
            late = self._chunk(view, max(view.slack_s, 0.0) + self._tpot_s, most)
            chunk = max(late, min(self._floor, most))
        return view.decode_tokens + chunk

    def _chunk(self, view: BudgetView, time_s: float, most: int) -> int:
        """Return the prompt tokens that fit beside the decode rows into `time_s`, or 0 if few."""
        before_chunk = StepLoad(
            num_tokens=view.decode_tokens,
            num_rows=view.num_decodes + 1,
            chunk_context=0.0,
            decode_context=view.decode_context,
        )
        usable_s = SAFETY * time_s / self.model.drift(has_chunks=True)
        decode_s = self.model.predict(before_chunk)
        free = max(0, self.model.knee - view.decode_tokens)
        fitting = self.model.largest_chunk(usable_s - decode_s, view.prompt_context, free=free)
        if fitting < free:
            # Rows that are late already hardly notice what fits below the knee.
            cheap = self.model.largest_chunk(CHEAP * decode_s, view.prompt_context, free=free)
            fitting = max(fitting, min(cheap, free))
        if fitting >= most:
            return most
        whole_tiles = int(fitting) // TILE * TILE
        return whole_tiles if whole_tiles >= self._floor else 0
