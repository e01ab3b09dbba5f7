"""What a completion shows of its prompt: the text, and log-probabilities in two forms."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tandem_engine.api.engine_client import TextCodec
from tandem_engine.api.output import PromptLogprobs
from tandem_serve.http.openai.logprobs import echo_logprobs, prompt_logprobs


class ShownPrompt(NamedTuple):
    """A prompt as a choice shows it."""

    text: str = ""
    """The echo."""
    logprobs: dict[str, list[Any]] | None = None
    """Of the echo, in OpenAI's form; None: they are not asked for."""
    members: dict[str, Any] = {}  # noqa: RUF012  # never changed
    """Members of the choice beside OpenAI's."""


NO_PROMPT: Final = ShownPrompt()


@dataclass(slots=True, kw_only=True)
class ShownPrompts:
    """The prompts of a call as their choices show them."""

    codec: TextCodec
    first_tokens: Sequence[int]
    """Of each prompt: what follows it has log-probabilities, and it has none."""
    echoes: Sequence[str]
    """Texts of the prompts; empty: they are not echoed."""
    num_echoed: int | None
    """Likeliest tokens at each position of an echo; None: it has no log-probabilities."""
    num_top: int | None
    """Likeliest tokens at each position in vLLM's form; None: it is not asked for."""
    choices_per_prompt: int
    _last: tuple[int, ShownPrompt] | None = field(default=None, init=False)
    """The prompt that was shown last, for its other choices."""

    def of_choice(self, index: int, logprobs: PromptLogprobs | None) -> ShownPrompt:
        """The prompt of a choice, given its log-probabilities; None: it has one token."""
        prompt = index // self.choices_per_prompt
        if self._last is None or self._last[0] != prompt:
            self._last = prompt, self._shown(prompt, logprobs)
        return self._last[1]

    def _shown(self, prompt: int, logprobs: PromptLogprobs | None) -> ShownPrompt:
        text = self.echoes[prompt] if self.echoes else ""
        echoed: dict[str, list[Any]] | None = None
        members: dict[str, Any] = {}
        if self.echoes and self.num_echoed is not None:
            first = self.first_tokens[prompt]
            echoed = echo_logprobs(self.codec, first, logprobs, num_top=self.num_echoed, text=text)
        if self.num_top is not None:
            members = {"prompt_logprobs": prompt_logprobs(self.codec, logprobs, self.num_top)}
        return ShownPrompt(text, echoed, members)
