"""Programs that run in a Ray pod beside the replicas: the preStop drain, HAProxy's wrapper."""
