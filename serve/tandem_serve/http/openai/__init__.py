"""OpenAI's endpoints, and vLLM's /tokenize: from a request's body to its response."""
