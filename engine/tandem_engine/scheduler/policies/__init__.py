"""The policies that the settings choose: strategies, orders, stages, budgets, batch sizes."""
