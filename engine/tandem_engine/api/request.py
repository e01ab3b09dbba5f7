"""Requests to the engine: one prompt and the sampling of its continuation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, Literal

from tandem_engine.api.errors import InvalidParameter

MAX_TOP_LOGPROBS: Final = 20
MAX_STOP_STRINGS: Final = 1024
MAX_STOP_LENGTH: Final = 1024
MAX_STOP_CHARACTERS: Final = 32768
MAX_N: Final = 8192
MAX_BEST_OF: Final = 128
MAX_LENGTH_PENALTY: Final = 10.0
HIGHEST_PRIORITY: Final = 1
LOWEST_PRIORITY: Final = 5
MAX_SALT_CHARACTERS: Final = 256
MAX_PENALTY: Final = 100.0
MAX_BIAS: Final = 100.0
MAX_BIASED_TOKENS: Final = 300
"""OpenAI's limit of logit_bias."""
GREEDY_BELOW: Final = 1e-5
_SHOWN_CHARACTERS: Final = 60
MAX_SEED: Final = 2**63 - 1
_CLOSED_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "seed": (-MAX_SEED - 1, MAX_SEED),
    "logprobs": (0, MAX_TOP_LOGPROBS),
    "prompt_logprobs": (0, MAX_TOP_LOGPROBS),
    "length_penalty": (-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),
    "n": (1, MAX_N),
}

# What draws or filters tokens has no meaning for a search by likelihood, a stop string would have
# to be looked for in every beam, and of the likeliest tokens a beam remembers its own alone.
_WITH_BEAMS: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "temperature": ((0.0, 1.0), "0 or 1"),
    "top_k": ((-1, 0), "-1 or 0"),
    "top_p": ((1.0,), "1"),
    "min_p": ((0.0,), "0"),
    "stop": (((),), "left out (stop_token_ids may be used instead)"),
    "logprobs": ((None, 0), "0, for the tokens of the answer alone, or left out"),
}
_EARLY_STOPPING: Final = (False, True, "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling of tokens from logits, and its end. Ranges are MindIE's.

    Raises:
        InvalidParameter: a value is out of its range.
    """

    max_tokens: int
    """Output tokens at most; the engine lowers it to maxIterTimes and to what maxSeqLen leaves. 0:
    the prompt is computed, and nothing behind it is shown."""
    min_tokens: int = 0
    """Output tokens before an end token or stop id may come. A stop string that ends within them
    is text like any other, as in vLLM; one that ends later may begin within them."""
    temperature: float = 1.0
    """0 is greedy, and so is anything too small to divide logits by (GREEDY_BELOW)."""
    top_k: int = -1
    """Keep the k most likely tokens; -1 or 0 keeps all."""
    top_p: float = 1.0
    """Keep the most likely tokens whose probabilities add up to top_p; 0 keeps the likeliest."""
    min_p: float = 0.0
    """Keep tokens at least min_p times as likely as the likeliest."""
    repetition_penalty: float = 1.0
    """Divides (or multiplies, if negative) the logit of every token seen in prompt or output."""
    presence_penalty: float = 0.0
    """Subtracted once from the logit of every token of the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logit of every token of the output, times its count there."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids, before penalties; each in [-100, 100], and at most
    300 of them, as at OpenAI."""
    seed: int | None = None
    """Same seed, same tokens, in any batch; None draws one."""
    stop: tuple[str, ...] = ()
    """Texts that end the output; they are not part of it. The first to end does, and of those that
    end together the longest."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the output, beside the model's own end tokens."""
    ignore_eos: bool = False
    """Go on past the model's own end tokens."""
    logprobs: int | None = None
    """None: no log-probabilities. k: those of the token and of the k likeliest ones."""
    prompt_logprobs: int | None = None
    """None: no log-probabilities of the prompt. k: those of its tokens, and of the k likeliest ones
    in their place. The prefix cache is not read then: it has no logits."""
    use_beam_search: bool = False
    """Keep the best_of (or n) likeliest beginnings instead of drawing tokens. Then what would
    draw them or end them by their text is refused, as vLLM and MindIE do: temperature other than
    0 or 1, top_k, top_p, min_p and stop."""
    length_penalty: float = 1.0
    """Beams are ranked by the sum of their log-probabilities over length ** length_penalty. The
    range is ours: the power of any length that there is stays a number."""
    early_stopping: bool | Literal["never"] = False
    """true: as many finished beams as requested end the search. false: when none that is left is
    likely to be better. never: when none can be. As in `transformers`."""
    n: int = 1
    """Choices to return; the service's maxN and maxBatchSize are further limits."""
    best_of: int | None = None
    """Choices to generate, or beams to keep, of which the n likeliest are returned: choices by mean
    log-probability, beams by their rank. At most 128, or n."""
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
        if self.use_beam_search:
            self._check_beams()
        else:
            self._check_no_beams()

    def _check_lengths(self) -> None:
        self._require("max_tokens", ok=self.max_tokens >= 0, allowed="at least 0")
        self._require(
            "min_tokens",
            ok=0 <= self.min_tokens <= self.max_tokens,
            allowed=f"in [0, max_tokens], here [0, {self.max_tokens}]",
        )
        self._require(
            "best_of",
            ok=self.best_of is None or self.n <= self.best_of <= max(self.n, MAX_BEST_OF),
            allowed=f"in [n, {MAX_BEST_OF}], here [{self.n}, {max(self.n, MAX_BEST_OF)}]",
        )

    def _check_filters(self) -> None:
        self._require("top_k", ok=self.top_k >= -1, allowed="-1 or 0 (off), or at least 1")
        self._require(
            "repetition_penalty",
            ok=0.0 < self.repetition_penalty <= MAX_PENALTY,
            allowed="in (0, 100]",
        )

    def _check_lists(self) -> None:
        if len(self.logit_bias) > MAX_BIASED_TOKENS:
            raise InvalidParameter(
                f"logit_bias has {len(self.logit_bias)} token ids; it must have at most "
                f"{MAX_BIASED_TOKENS}.",
                parameter="logit_bias",
            )
        self._require(
            "logit_bias",
            ok=all(
                token_id >= 0 and -MAX_BIAS <= bias <= MAX_BIAS
                for token_id, bias in self.logit_bias.items()
            ),
            allowed="a mapping of token ids to values in [-100, 100]",
        )
        self._check_stop_strings()

    def _check_stop_strings(self) -> None:
        _require_at_most("stop", len(self.stop), MAX_STOP_STRINGS, "strings")
        for i, text in enumerate(self.stop):
            if not text:
                raise InvalidParameter(
                    f'stop[{i}] is ""; it must have 1 to {MAX_STOP_LENGTH} characters.',
                    parameter="stop",
                )
            _require_at_most(f"stop[{i}]", len(text), MAX_STOP_LENGTH, "characters")
        num_characters = sum(map(len, self.stop))
        _require_at_most("stop", num_characters, MAX_STOP_CHARACTERS, "characters in all")

    def _check_beams(self) -> None:
        self._require(
            "early_stopping",
            ok=self.early_stopping in _EARLY_STOPPING,
            allowed='true, false or "never"',
        )
        for name, (values, words) in _WITH_BEAMS.items():
            self._require(
                name, ok=getattr(self, name) in values, allowed=f"{words} with use_beam_search"
            )

    def _check_no_beams(self) -> None:
        for name, off in (("length_penalty", 1.0), ("early_stopping", False)):
            self._require(
                name,
                ok=getattr(self, name) == off,
                allowed=f"{_short(off)} without use_beam_search",
            )

    def _require(self, name: str, *, ok: bool, allowed: str) -> None:
        if not ok:
            raise InvalidParameter(
                f"{name} is {_short(getattr(self, name))}; it must be {allowed}.", parameter=name
            )

    @property
    def num_sequences(self) -> int:
        """Sequences that are computed: choices, or beams."""
        return self.best_of or self.n

    @property
    def is_greedy(self) -> bool:
        """True if the likeliest token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_p == 0


def _require_at_most(path: str, count: int, most: int, items: str) -> None:
    if count > most:
        raise InvalidParameter(
            f"{path} has {count} {items}; it must have at most {most}.",
            parameter=path.partition("[")[0],
        )


def _short(value: object) -> str:
    """A value as JSON, as an error shows it: what a caller sent may be megabytes long."""
    text = json.dumps(value, ensure_ascii=False, default=dict)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def check_priority(priority: int) -> None:
    """Refuse a priority that is none.

    Raises:
        InvalidParameter: it is not in [1, 5].
    """
    if not HIGHEST_PRIORITY <= priority <= LOWEST_PRIORITY:
        raise InvalidParameter(
            f"priority is {_short(priority)}; it must be in [{HIGHEST_PRIORITY} (highest), "
            f"{LOWEST_PRIORITY} (lowest)].",
            parameter="priority",
        )


def check_cache_salt(salt: str) -> None:
    """Refuse a salt that is too long.

    Raises:
        InvalidParameter: it has more than 256 characters.
    """
    if len(salt) > MAX_SALT_CHARACTERS:
        raise InvalidParameter(
            f"cache_salt has {len(salt)} characters; it must have at most {MAX_SALT_CHARACTERS}.",
            parameter="cache_salt",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to compute, and how to continue it: in one sequence or in several."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    max_new_tokens: int
    """Output tokens at most: the least of max_tokens, maxIterTimes and what maxSeqLen leaves."""
    stop_token_ids: frozenset[int] = frozenset()
    """All ids that end it: the caller's and, unless ignore_eos, the model's end tokens."""
    seeds: tuple[int, ...] = (0,)
    """The seed in force of each sequence; AsyncEngine derives them."""
    sequence_ids: tuple[str, ...] = ()
    """Ids of its sequences, as many as seeds: choices, or beams. Empty: one, called request_id."""
    priority: int = LOWEST_PRIORITY
    """1 is the highest, 5 the lowest; counts where a policy goes by priority."""
    cache_salt: str = ""
    """Requests of different salts share no KV blocks; at most 256 characters."""
    arrived: float = 0.0
    """Seconds, on the clock by which the engine's steps are timed."""
    deadline: float = inf
    """Seconds, on the same clock; from then on nothing is computed for it. inf: there is none."""

    def __post_init__(self) -> None:
        check_priority(self.priority)
        check_cache_salt(self.cache_salt)

    @property
    def sequences(self) -> tuple[str, ...]:
        """Ids of its sequences; the first one computes the prompt."""
        return self.sequence_ids or (self.request_id,)
