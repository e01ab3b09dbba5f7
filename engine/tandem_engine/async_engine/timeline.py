"""The moments of one request, from which its latencies follow."""

from dataclasses import dataclass

from tandem_engine.api.request import LOWEST_PRIORITY


@dataclass(slots=True)
class Timeline:
    """Seconds of one monotonic clock; all latencies are differences of these."""

    arrived: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    num_tokens: int = 0
    chunks: list[tuple[float, int]] | None = None
    """Start of each step that computed a part of its prompt, and the tokens of that part; None: it
    is not traced."""
    priority: int = LOWEST_PRIORITY
    num_cached: int = 0
    """Prompt tokens that it did not have to compute: another request or choice had."""
    has_ended: bool = False
    """True when it ended well."""

    def token(self, now: float) -> float | None:
        """Note a token; return the seconds since the one before (ITL), None for the first."""
        since = None if self.last_token is None else now - self.last_token
        self.first_token = now if self.first_token is None else self.first_token
        self.last_token = now
        self.num_tokens += 1
        return since

    @property
    def queue_time(self) -> float | None:
        """Seconds from arrival to the first step."""
        return None if self.scheduled is None else self.scheduled - self.arrived

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrived

    @property
    def tpot(self) -> float | None:
        """Mean seconds a token after the first; None with fewer than two tokens."""
        if self.first_token is None or self.last_token is None or self.num_tokens < 2:  # noqa: PLR2004 - the first two make an interval
            return None
        return (self.last_token - self.first_token) / (self.num_tokens - 1)
