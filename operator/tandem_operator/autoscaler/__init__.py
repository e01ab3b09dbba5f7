"""The loop of the autoscaler: observe → decide → record → write, once a period for each service."""
