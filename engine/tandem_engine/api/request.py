"""What a caller asks of the engine: one prompt and how to sample its continuation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tandem_engine.api.errors import InvalidParameter

MAX_TOP_LOGPROBS: Final = 20
MAX_STOP_STRINGS: Final = 1024
MAX_CHOICES: Final = 128
MAX_PENALTY: Final = 100.0
MAX_BIAS: Final = 100.0
GREEDY_BELOW: Final = 1e-5
_SHOWN_CHARACTERS: Final = 60
MAX_SEED: Final = 2**63 - 1
_CLOSED_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, 100.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "seed": (-MAX_SEED - 1, MAX_SEED),
    "logprobs": (0, MAX_TOP_LOGPROBS),
    "n": (1, MAX_CHOICES),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to turn logits into tokens, and when to stop. Ranges are MindIE's.

    Raises:
        InvalidParameter: a value is out of its range.
    """

    max_tokens: int
    """Output tokens at most; the engine lowers it to maxIterTimes and to the room in maxSeqLen."""
    min_tokens: int = 0
    """Output tokens before an end token or stop id may come."""
    temperature: float = 1.0
    """0 is greedy, and so is anything too small to divide logits by (GREEDY_BELOW)."""
    top_k: int = -1
    """Keep the k most likely tokens; -1 or 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens whose probabilities add up to top_p."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as likely as the likeliest."""
    repetition_penalty: float = 1.0
    """Divides (or multiplies, if negative) the logit of every token seen in prompt or output."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token of the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of every token of the output, times its count there."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids, each in [-100, 100]."""
    seed: int | None = None
    """Same seed, same tokens, whatever else is in the batch; None draws one."""
    stop: tuple[str, ...] = ()
    """Texts that end the output; they are not part of it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, beside the model's own end tokens."""
    ignore_eos: bool = False
    """Go on past the model's own end tokens."""
    logprobs: int | None = None
    """None: no log-probabilities. k: those of the token and of the k likeliest ones."""
    n: int = 1
    """Choices to return."""
    best_of: int | None = None
    """Choices to generate, of which the n likeliest (by mean log-probability) are returned."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text."""

    def __post_init__(self) -> None:
        for name, (low, high) in _CLOSED_RANGES.items():
            value = getattr(self, name)
            self._require(
                name, ok=value is None or low <= value <= high, allowed=f"in [{low}, {high}]"
            )
        self._check_lengths()
        self._check_filters()
        self._check_lists()

    def _check_lengths(self) -> None:
        self._require("max_tokens", ok=self.max_tokens >= 1, allowed="at least 1")
        self._require(
            "min_tokens",
            ok=0 <= self.min_tokens <= self.max_tokens,
            allowed=f"in [0, max_tokens], here [0, {self.max_tokens}]",
        )
        self._require(
            "best_of",
            ok=self.best_of is None or self.n <= self.best_of <= MAX_CHOICES,
            allowed=f"in [n, {MAX_CHOICES}], here [{self.n}, {MAX_CHOICES}]",
        )

    def _check_filters(self) -> None:
        self._require("top_k", ok=self.top_k >= -1, allowed="-1 or 0 (off), or at least 1")
        self._require("top_p", ok=0.0 < self.top_p <= 1.0, allowed="in (0, 1]")
        self._require(
            "repetition_penalty",
            ok=0.0 < self.repetition_penalty <= MAX_PENALTY,
            allowed="in (0, 100]",
        )

    def _check_lists(self) -> None:
        self._require(
            "logit_bias",
            ok=all(
                token_id >= 0 and -MAX_BIAS <= bias <= MAX_BIAS
                for token_id, bias in self.logit_bias.items()
            ),
            allowed="a mapping of token ids to values in [-100, 100]",
        )
        self._require(
            "stop",
            ok=len(self.stop) <= MAX_STOP_STRINGS and all(self.stop),
            allowed=f"at most {MAX_STOP_STRINGS} strings, none of them empty",
        )

    def _require(self, name: str, *, ok: bool, allowed: str) -> None:
        if not ok:
            raise InvalidParameter(
                f"{name} is {_short(getattr(self, name))}; it must be {allowed}.", parameter=name
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature < GREEDY_BELOW


def _short(value: object) -> str:
    """A value as an error shows it: what a caller sent may be megabytes long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence to compute: a prompt and how to continue it."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    """Output tokens at most: the least of max_tokens, maxIterTimes and the room in maxSeqLen."""
    stop_token_ids: frozenset[int] = frozenset()
    """All ids that end it: the caller's and, unless ignore_eos, the model's end tokens."""
    seed: int = 0
    """The seed in force; the front derives one a choice."""
