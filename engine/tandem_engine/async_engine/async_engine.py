"""The engine for an asyncio server; implements `tandem_engine.api.engine_client.EngineClient`."""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from tandem_engine.api.config import ScheduleConfig
from tandem_engine.api.engine_client import EngineLimits, OutputStream
from tandem_engine.api.errors import ConfigError, InvalidParameter, PromptTooLong
from tandem_engine.api.output import EngineStats
from tandem_engine.api.request import LOWEST_PRIORITY, Request, SamplingParams
from tandem_engine.api.rewrites import (
    consequences,
    rewrite,
    with_batch_size,
    with_longest_output,
)
from tandem_engine.api.sampling_defaults import SamplingDefaults
from tandem_engine.api.slo import Slo
from tandem_engine.api.steps import MAX_KEPT_STEPS, StepExplanation
from tandem_engine.api.timeline import Timeline
from tandem_engine.async_engine.capacity_watch import CapacityWatch
from tandem_engine.async_engine.choice import choices_of
from tandem_engine.async_engine.loop import EngineLoop
from tandem_engine.async_engine.metrics import EngineMetrics
from tandem_engine.async_engine.recordings import Recordings
from tandem_engine.async_engine.stream import BestOfStream, RequestStream
from tandem_engine.sampling.counter_rng import derive_seed
from tandem_engine.text.codec import CheckpointCodec

_LOG = logging.getLogger(__name__)


class AsyncEngine:
    """Checks requests, fans them out into choices, and hands them to the engine's thread."""

    def __init__(
        self,
        loop: EngineLoop,
        *,
        codec: CheckpointCodec,
        limits: EngineLimits,
        schedule: ScheduleConfig,
        end_token_ids: frozenset[int],
        sampling_defaults: SamplingDefaults,
        metrics: EngineMetrics,
        recordings: Recordings,
        capacity_watch: CapacityWatch | None = None,
    ) -> None:
        self._loop = loop
        self._codec = codec
        self._limits = limits
        self._schedule = self._sized_for = schedule
        self._end_token_ids = end_token_ids
        self._sampling_defaults = sampling_defaults
        self._metrics = metrics
        self._recordings = recordings
        self._capacity_watch = capacity_watch
        self._numbers = itertools.count()

    @property
    def limits(self) -> EngineLimits:
        """Limits of the replica."""
        return self._limits

    @property
    def codec(self) -> CheckpointCodec:
        """The checkpoint's tokenizer."""
        return self._codec

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """Parameters that hold where a request is silent."""
        return self._sampling_defaults

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
        """Queue a request; see `EngineClient.submit`."""
        self.check_health()
        self._check(prompt_token_ids, sampling)
        self._loop.attach(asyncio.get_running_loop())
        # The caller's id may come twice; the engine's may not.
        name = f"{request_id}-{next(self._numbers)}"
        request = self._request(name, tuple(prompt_token_ids), sampling)
        request = replace(
            request,
            priority=priority,
            cache_salt=cache_salt,
            deadline=request.arrived + timeout_s,
        )
        self._check_blocks(request)
        # All choices are computed at once. Of beams, only the best are shown, when all are done.
        num_shown = sampling.n if sampling.use_beam_search else sampling.num_sequences
        ids = request.sequences
        stream = RequestStream(num_shown, abort=lambda: self._loop.abort(ids))
        choices = choices_of(request, count=num_shown, stream=stream, codec=self._codec)
        if is_traced:
            stream.trace([choice.timeline for choice in choices])
        self._loop.begin(request, choices)
        if num_shown == sampling.n:
            return stream
        with_logprobs = sampling.logprobs is not None
        return BestOfStream(stream, num_best=sampling.n, with_logprobs=with_logprobs)

    async def reconfigure(self, schedule: ScheduleConfig, slo: Slo) -> None:
        """Take over live settings; see `EngineClient.reconfigure`."""
        if schedule.cache_block_size != self._schedule.cache_block_size:
            raise ConfigError(
                f"cacheBlockSize {schedule.cache_block_size} needs a restart; "
                f"this replica's blocks have {self._schedule.cache_block_size} tokens."
            )
        schedule = in_force(schedule, self._limits, slo)
        self._warn_of_memory(schedule)
        for consequence in consequences(schedule, slo, max_seq_len=self._limits.max_seq_len):
            _LOG.info("%s", consequence.text)
        await asyncio.wrap_future(self._loop.reconfigure(schedule, slo))
        self._schedule = schedule
        if self._capacity_watch is not None:
            self._capacity_watch.hurry()

    def stats(self) -> EngineStats:
        """The inner state after the last step."""
        return self._loop.stats

    def steps(
        self, since: int = 0, limit: int = MAX_KEPT_STEPS, *, with_decodes: bool = True
    ) -> Sequence[StepExplanation]:
        """Explain the last steps; see `EngineClient.steps`."""
        return self._loop.steps(since, limit, with_decodes=with_decodes)

    async def timeline(self, num_steps: int, *, within_s: float) -> Timeline:
        """Record the next steps; see `EngineClient.timeline`."""
        self.check_health()
        timeline = await self._recordings.record(num_steps, within_s)
        if not timeline.steps:
            self.check_health()
        return timeline

    def metrics(self) -> bytes:
        """The engine's metrics in Prometheus' text format."""
        return self._metrics.text()

    def check_health(self) -> None:
        """Raise EngineStopped, with the cause, when the engine cannot serve any more."""
        if self._loop.stopped is not None:
            raise self._loop.stopped

    async def stop(self) -> None:
        """End the step loop; running requests end with EngineStopped."""
        await self._recordings.stop()
        if self._capacity_watch is not None:
            self._capacity_watch.stop()
        self._loop.stop()
        await asyncio.to_thread(self._loop.join)

    def _warn_of_memory(self, schedule: ScheduleConfig) -> None:
        sized = self._sized_for
        if (
            schedule.largest_step > sized.largest_step
            or schedule.max_batch_size > sized.max_batch_size
        ):
            _LOG.warning(
                "Steps may now have %d tokens in %d rows; memory was set aside for %d in %d when "
                "this replica started",
                *(schedule.largest_step, schedule.max_batch_size),
                *(sized.largest_step, sized.max_batch_size),
            )

    def _request(self, name: str, prompt: tuple[int, ...], sampling: SamplingParams) -> Request:
        if sampling.use_beam_search and sampling.num_sequences == 1:
            # As in `transformers`, one beam alone is greedy decoding.
            sampling = replace(sampling, use_beam_search=False, temperature=0.0)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        own_ends = frozenset() if sampling.ignore_eos else self._end_token_ids
        indices = range(sampling.num_sequences)
        if len(indices) > sampling.n and sampling.logprobs is None:
            sampling = replace(sampling, logprobs=0)  # the choices are ranked by them
        if sampling.prompt_logprobs is not None:
            num_top = min(sampling.prompt_logprobs, self._limits.vocab_size)
            sampling = replace(sampling, prompt_logprobs=num_top)
        return Request(
            request_id=name,
            prompt_token_ids=prompt,
            sampling=sampling,
            max_new_tokens=self._max_new_tokens(len(prompt), sampling),
            stop_token_ids=own_ends.union(sampling.stop_token_ids, self._special_stops(sampling)),
            seeds=tuple(derive_seed(seed, index) for index in indices),
            sequence_ids=tuple(f"{name}-{index}" for index in indices),
            arrived=time.perf_counter(),
        )

    def _special_stops(self, sampling: SamplingParams) -> frozenset[int]:
        """Stop strings that are special tokens, which the text may not show."""
        ids = self._codec.special_tokens_of(sampling.stop)
        return frozenset(token_id for token_id in ids if token_id < self._limits.vocab_size)

    def _check_blocks(self, request: Request) -> None:
        """Refuse beams that could never run together."""
        if not self._loop.can_ever_hold(request):
            width = request.sampling.num_sequences
            raise InvalidParameter(
                f"{width} beams of {len(request.prompt_token_ids)} and {request.max_new_tokens} "
                f"tokens do not fit into the KV cache of this service, which has "
                f"{self._limits.num_kv_blocks} blocks of {self._limits.cache_block_size} tokens; "
                f"ask for fewer beams or a lower max_tokens.",
                parameter="n",
            )

    def _max_new_tokens(self, num_prompt: int, sampling: SamplingParams) -> int:
        tokens_left = self._limits.max_seq_len - num_prompt
        # One token at least: it is the end of the prompt.
        return min(max(1, sampling.max_tokens), self._schedule.max_iter_times, tokens_left)

    def _check(self, prompt: Sequence[int], sampling: SamplingParams) -> None:
        if not prompt:
            raise InvalidParameter(
                "The prompt is empty; give at least one token.", parameter="prompt"
            )
        if len(prompt) > self._limits.max_input_token_len:
            raise PromptTooLong(
                f"This model's maximum context length is {self._limits.max_seq_len} tokens, of "
                f"which a prompt may have {self._limits.max_input_token_len}; the prompt has "
                f"{len(prompt)} tokens. Shorten it, or serve with a larger maxInputTokenLen and "
                f"maxSeqLen.",
                parameter="prompt",
            )
        self._check_ids(prompt, "prompt")
        self._check_ids(sampling.logit_bias, "logit_bias")
        self._check_ids(sampling.stop_token_ids, "stop_token_ids")
        self._check_batch(sampling)

    def _check_ids(self, token_ids: Iterable[int], name: str) -> None:
        vocab_size = self._limits.vocab_size
        wrong = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
        if wrong:
            raise InvalidParameter(
                f"{name} names the token {wrong[0]}; the model's tokens are 0 to {vocab_size - 1}.",
                parameter=name,
            )

    def _check_batch(self, sampling: SamplingParams) -> None:
        name, value = ("n", sampling.n)
        if sampling.best_of is not None:
            name, value = ("best_of", sampling.best_of)
        limit = self._schedule.largest_n
        if value > limit:
            raise InvalidParameter(
                f"{name} is {value}; it must be in [1, {limit}], the maxN of this service.",
                parameter=name,
            )


def in_force(schedule: ScheduleConfig, limits: EngineLimits, slo: Slo) -> ScheduleConfig:
    """Return the schedule in force: with what the replica chose, and MindIE's rewrites.

    Each rewrite is logged at INFO.
    """
    if "max_batch_size" not in schedule.model_fields_set:
        schedule = with_batch_size(schedule, limits.max_batch_size)
    rewritten, sentences = rewrite(
        with_longest_output(schedule, slo, max_seq_len=limits.max_seq_len),
        max_seq_len=limits.max_seq_len,
        max_input_token_len=limits.max_input_token_len,
    )
    for sentence in sentences:
        _LOG.info("%s", sentence)
    return rewritten
