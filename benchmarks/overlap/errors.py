"""Causes for which the link cannot be made; the benchmark goes on on loopback."""


class LinkError(Exception):
    """There can be no link; the text is one sentence with the way out."""
