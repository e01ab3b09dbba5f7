"""The same budget at every step."""

from tandem_engine.scheduler.policies.budget.budget_view import BudgetView


class FixedBudget:
    """splitChunkTokens for every step: SplitFuse as MindIE has it."""

    def choose(self, view: BudgetView) -> int:
        """Return the maximum."""
        return view.max_token_budget
