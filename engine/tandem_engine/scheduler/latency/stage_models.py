"""MindIE's two latency models, which stageSelectPolicy 2 compares.

Start values, and when a fit is taken, are those of MindIE's scheduler. Times are
seconds here, milliseconds there.
"""

from collections import deque
from typing import Final

PREFILL_START: Final = (0.1317e-3, 25.797e-3)
"""Seconds a token, and seconds of any prefill."""

DECODE_START: Final = (0.2181e-3, 0.0, 29.961e-3)
"""Seconds a sequence, seconds a KV block, and seconds of any decode step."""

_RING: Final = 1000
_REFIT_EVERY: Final = 400


class PrefillModel:
    """time = s · tokens + c, by least squares over all prefills so far.

    MindIE does not say how it forgets; here all samples count alike, as running means.
    """

    def __init__(self) -> None:
        self._token_s, self._base_s = PREFILL_START
        self._count = 0
        self._mean_tokens = self._mean_s = 0.0
        # Sums of products of the distances from the means (Welford): nothing cancels out.
        self._variation = self._covariation = 0.0

    @property
    def coefficients(self) -> tuple[float, float]:
        """s in seconds a token, and c in seconds."""
        return self._token_s, self._base_s

    def predict(self, num_tokens: int) -> float:
        """Seconds that the prefill of `num_tokens` takes."""
        return self._token_s * num_tokens + self._base_s

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from one prefill; the new line is taken only with s > 0 and c > 0."""
        self._count += 1
        distance = num_tokens - self._mean_tokens
        self._mean_tokens += distance / self._count
        self._mean_s += (seconds - self._mean_s) / self._count
        self._variation += distance * (num_tokens - self._mean_tokens)
        self._covariation += distance * (seconds - self._mean_s)
        if self._variation <= 0.0:
            return
        slope = self._covariation / self._variation
        base = self._mean_s - slope * self._mean_tokens
        if slope > 0.0 and base > 0.0:
            self._token_s, self._base_s = slope, base


class DecodeModel:
    """time = a · sequences + b · KV blocks + c, refitted every 400 steps over the last 1000.

    One decode step computes a token for each sequence, so sequences are MindIE's tokens.
    """

    def __init__(self) -> None:
        self._coefficients = DECODE_START
        self._ring: deque[tuple[int, int, float]] = deque()
        self._sums = _DecodeSums()
        self._since_refit = 0

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """a in seconds a sequence, b in seconds a block, and c in seconds."""
        return self._coefficients

    def predict(self, num_sequences: int, num_blocks: int) -> float:
        """Seconds that one step of so many sequences, which hold so many KV blocks, takes."""
        row_s, block_s, base_s = self._coefficients
        return row_s * num_sequences + block_s * num_blocks + base_s

    def observe(self, num_sequences: int, num_blocks: int, seconds: float) -> None:
        """Learn from one step; a new fit is taken only if all three coefficients are above 0."""
        self._ring.append((num_sequences, num_blocks, seconds))
        self._sums.add(num_sequences, num_blocks, seconds, 1)
        if len(self._ring) > _RING:
            self._sums.add(*self._ring.popleft(), -1)
        self._since_refit += 1
        if self._since_refit < _REFIT_EVERY:
            return
        self._since_refit = 0
        fit = self._sums.fit()
        if fit is not None and min(fit) > 0.0:
            self._coefficients = fit


class _DecodeSums:
    """Sums over the ring, kept up to date sample by sample: a refit costs no walk over it.

    Counts are whole numbers and their products exact, so that nothing drifts or cancels out when
    a sample leaves the ring.
    """

    def __init__(self) -> None:
        self.count = self.rows = self.blocks = 0
        self.rows_rows = self.rows_blocks = self.blocks_blocks = 0
        self.s = self.rows_s = self.blocks_s = 0.0

    def add(self, rows: int, blocks: int, seconds: float, sign: int) -> None:
        """Take a sample in (sign 1) or out (sign −1)."""
        self.count += sign
        self.rows += sign * rows
        self.blocks += sign * blocks
        self.rows_rows += sign * rows * rows
        self.rows_blocks += sign * rows * blocks
        self.blocks_blocks += sign * blocks * blocks
        self.s += sign * seconds
        self.rows_s += sign * rows * seconds
        self.blocks_s += sign * blocks * seconds

    def fit(self) -> tuple[float, float, float] | None:
        """The plane of least squares; None: the samples lie on a line, so there are many."""
        count = self.count
        rows_rows = count * self.rows_rows - self.rows * self.rows
        rows_blocks = count * self.rows_blocks - self.rows * self.blocks
        blocks_blocks = count * self.blocks_blocks - self.blocks * self.blocks
        determinant = rows_rows * blocks_blocks - rows_blocks * rows_blocks
        if determinant <= 0:
            return None
        rows_s = count * self.rows_s - self.rows * self.s
        blocks_s = count * self.blocks_s - self.blocks * self.s
        row_s = (rows_s * blocks_blocks - blocks_s * rows_blocks) / determinant
        block_s = (blocks_s * rows_rows - rows_s * rows_blocks) / determinant
        base_s = (self.s - row_s * self.rows - block_s * self.blocks) / count
        return row_s, block_s, base_s
