"""The engine as a server sees it: text in, a stream of outputs back."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.output import EngineStats, Output
from tandem_engine.api.request import LOWEST_PRIORITY, SamplingParams
from tandem_engine.api.sampling_defaults import SamplingDefaults
from tandem_engine.api.slo import Slo
from tandem_engine.api.steps import MAX_KEPT_STEPS, StepExplanation
from tandem_engine.api.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits of one replica; fixed when it starts."""

    max_seq_len: int
    """Prompt and output of one request together, in tokens."""
    max_input_token_len: int
    """Longest prompt in tokens."""
    vocab_size: int
    cache_block_size: int
    num_kv_blocks: int
    max_sequences: int
    """Sequences of max_seq_len tokens that fit into the KV cache at once."""
    max_batch_size: int
    """Sequences that may run at the same time where the schedule does not say how many."""


class TextCodec(Protocol):
    """Text to token ids and back, as the checkpoint's tokenizer does it; from any thread."""

    @property
    def max_token_chars(self) -> int:
        """Characters of the longest token: a text of k times as many has about k tokens or more."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`."""

    def token_text(self, token_id: int) -> str:
        """One token as text, special tokens included; not valid UTF-8 becomes U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """One token as the bytes that it stands for."""

    def encode_chat(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: dict[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation under the checkpoint's chat template.

        Raises:
            InvalidParameter: there is no template, it refuses the messages (its words are kept), or
                does not write the last message, which the answer is to continue.
        """


class RequestTimeline(Protocol):
    """The moments of one choice, in seconds of `time.perf_counter`; None: it has not come yet."""

    @property
    def arrived(self) -> float:
        """Arrival at the engine."""

    @property
    def scheduled(self) -> float | None:
        """Begin of the first step."""

    @property
    def first_token(self) -> float | None:
        """End of the step that yielded the first token."""

    @property
    def last_token(self) -> float | None:
        """End of the step that yielded the newest token."""

    @property
    def num_tokens(self) -> int:
        """Tokens so far."""

    @property
    def chunks(self) -> Sequence[tuple[float, int]] | None:
        """Begin and prompt tokens of each step of its prompt; None: it is not traced."""


class OutputStream(Protocol):
    """The outputs of one request, all choices interleaved; ends when every choice has ended."""

    @property
    def timelines(self) -> Sequence[RequestTimeline]:
        """The moments of each choice of a traced request; empty: it is not traced."""

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that the prefix cache had at its first step; 0 before it."""

    def __aiter__(self) -> AsyncIterator[Output]:
        """Iterate over the outputs.

        Raises (while iterating):
            RequestFailed: the request died; the text is the cause.
            DeadlineExceeded: the request was not done in time.
            EngineStopped: the engine stopped before the end.
        """

    def abort(self) -> None:
        """Give everything back that the request holds; harmless when it has ended."""


class EngineClient(Protocol):
    """Interface of a running engine to the server; all methods are called on one event loop.

    The word is vLLM's; `AsyncEngine` implements it, and a fake one in the tests of HTTP.
    """

    @property
    def limits(self) -> EngineLimits:
        """Limits of the replica."""

    @property
    def codec(self) -> TextCodec:
        """The checkpoint's tokenizer."""

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """Parameters of the checkpoint that hold where a request is silent; `submit` takes all."""

    def submit(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        priority: int = LOWEST_PRIORITY,
        cache_salt: str = "",
        timeout_s: float = inf,
        is_traced: bool = False,
    ) -> OutputStream:
        """Queue a request; its choices are n (or best_of) sequences.

        Args:
            request_id: The caller's name for it.
            prompt_token_ids: The prompt.
            sampling: How to continue it.
            priority: 1, the highest, to 5; counts where a policy goes by priority.
            cache_salt: Requests of different salts share no KV blocks.
            timeout_s: Seconds from now on; if it is not done then, its stream ends with
                DeadlineExceeded, and nothing more is computed for it.
            is_traced: Note when parts of its prompt are computed, and show its timelines.

        Raises (at once):
            RequestError: the request can never be served; nothing was queued.
            EngineStopped: the engine takes no more requests.
        """

    async def reconfigure(self, schedule: ScheduleConfig, slo: Slo) -> None:
        """Take over live settings between two steps.

        Raises:
            ConfigError: a setting needs a restart; nothing was changed.
            EngineStopped: the engine takes nothing over any more.
            Exception: it failed; the settings before it are in force.
        """

    def stats(self) -> EngineStats:
        """The inner state after the last step."""

    def steps(
        self, since: int = 0, limit: int = MAX_KEPT_STEPS, *, with_decodes: bool = True
    ) -> Sequence[StepExplanation]:
        """Explain the last steps, oldest first; from any thread.

        Args:
            since: The first number to return.
            limit: Steps at most; the newest ones that are kept.
            with_decodes: List the decode rows; False: count them only.
        """

    async def timeline(self, num_steps: int, *, within_s: float) -> Timeline:
        """Record what the streams of all ranks do in the next steps; the service goes on meanwhile.

        One recording runs at a time; a second call waits for the first one's end.

        Args:
            num_steps: Steps to record, 1 to MAX_TIMELINE_STEPS.
            within_s: Seconds after which the timeline ends with the steps that there were.

        Raises:
            EngineStopped: the engine computes nothing any more.
        """

    def metrics(self) -> bytes:
        """The engine's metrics in Prometheus' text format."""

    def check_health(self) -> None:
        """Raise EngineStopped, with the cause, when the engine cannot serve any more."""

    async def stop(self) -> None:
        """End the step loop; running requests end with EngineStopped."""
