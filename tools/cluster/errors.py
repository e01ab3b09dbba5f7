"""Errors that a user can resolve: one sentence each."""


class ClusterError(Exception):
    """A cluster, or a part of it, is unavailable; the text is the sentence for the user."""


class Unavailable(ClusterError):
    """This machine cannot run a cluster at all."""


class AlreadyUp(ClusterError):
    """A cluster of this name runs, or is being started."""
