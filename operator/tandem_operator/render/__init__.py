"""InferenceService → the manifests of all that it needs; pure."""
