"""Models of step times, learnt while serving, for budgets and batch sizes."""
