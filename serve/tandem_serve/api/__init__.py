"""Plain data: the InferenceService and the documents rendered from it."""
