"""The server of Tandem: the InferenceService manifest, HTTP, Ray Serve."""
