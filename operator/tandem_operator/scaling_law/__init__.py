"""The number of replicas of a service, decided from its metrics; pure, time is an argument."""
