"""The Kubernetes operator: an InferenceService becomes a RayService, and its state is reported."""
