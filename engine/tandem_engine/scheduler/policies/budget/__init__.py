"""Token budgets of SplitFuse steps."""

from tandem_engine.api.slo import Slo
from tandem_engine.scheduler.latency.step_model import StepTimeModel
from tandem_engine.scheduler.policies.budget.budget import Budget, BudgetView, FixedBudget
from tandem_engine.scheduler.policies.budget.slo_budget import SloBudget


def budget_for(slo: Slo, model: StepTimeModel) -> Budget:
    """Return the budget that keeps the TPOT target; without one, the maximum at every step.

    Args:
        slo: The latency targets.
        model: Predicts the time of a step; its owner lets it learn.
    """
    if slo.tpot_s is None:
        return FixedBudget()
    return SloBudget(slo, model)


__all__ = ["Budget", "BudgetView", "budget_for"]
