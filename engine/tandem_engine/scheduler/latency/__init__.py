"""How long a step takes, learnt from the steps before it: what budgets and batch sizes go by."""
