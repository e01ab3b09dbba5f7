"""The same budget at every step."""

from tandem_engine.scheduler.latency.step_load import StepLoad
from tandem_engine.scheduler.policies.budget.budget_view import BudgetView


class FixedBudget:
    """splitChunkTokens, whatever the step: SplitFuse as MindIE has it."""

    def choose(self, view: BudgetView) -> int:
        """The ceiling."""
        return view.ceiling

    def observe(self, load: StepLoad, seconds: float) -> None:
        """Nothing: the budget knows no times."""
