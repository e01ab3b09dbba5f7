"""Ray as the operator reaches it: the REST interface of the heads, and the token for it."""
