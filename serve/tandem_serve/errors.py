"""The one error of the server's commands."""


class ServeError(Exception):
    """A command failed; the text is a sentence for the user, with a way out."""

    def __init__(self, text: str, *, details: str = "") -> None:
        super().__init__(text)
        self.details = details
        """Background such as a traceback; shown with -v."""
