"""Plain data of the server's door: the InferenceService and what is rendered from it."""
