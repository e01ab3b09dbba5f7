"""Records of the last steps, and their explanations for people."""
