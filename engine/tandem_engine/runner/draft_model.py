"""Drafts by a smaller model with the same tokenizer, for all sequences of a step at once.

It samples as the request asks, with the random numbers of the very position: a draft of a drawn
row so is right as often as both models, given the same number, draw the same token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.drafts import Draft, Proposals
from tandem_engine.api.step import Step
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.model.decoder import Decoder, allocate_kv_cache
from tandem_engine.runner.batch import FlatBatch, flatten
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.sampler import Sampler
from tandem_engine.speculation.draft_cache import DraftCache

_FEW: Final = 1
"""Tokens, beside refused drafts, that a sequence gets in a step."""


@dataclass(slots=True)
class _Drafting:
    """A sequence that is drafted for."""

    row: Row
    """A copy of it, which the drafts are appended to."""
    num_known: int
    """Its tokens without drafts."""
    most: int
    """Drafts at most."""
    start: int
    """Its tokens that are computed."""
    blocks: Sequence[int]
    drafts: list[int] = field(default_factory=list)
    is_over: bool = False

    @property
    def wants_more(self) -> bool:
        return not self.is_over and len(self.drafts) < self.most


class DraftModel:
    """Implements `runner.drafts.ModelDrafter`.

    Args:
        decoder: The draft model; whole, on this process's device.
        runtime: Its device.
        num_blocks: KV blocks.
        block_size: Tokens of one.
    """

    def __init__(
        self, decoder: Decoder, *, runtime: DeviceRuntime, num_blocks: int, block_size: int
    ) -> None:
        self._decoder, self._runtime = decoder, runtime
        self._block_size = block_size
        self._kv_cache = allocate_kv_cache(
            decoder.cache_layout(block_size), num_blocks=num_blocks, device=decoder.device
        )
        self._cache = DraftCache(num_blocks, block_size)
        self._sampler = Sampler(runtime.kernels.row_sampler())
        # Sequence id → its row without output.
        self._bases: dict[str, Row] = {}

    def propose(self, asked: Mapping[Row, int], num_tokens: int) -> Proposals:
        """See `ModelDrafter`."""
        self._cache.begin_round()
        drafts: dict[str, Draft] = {}
        begun: list[_Drafting] = []
        never: list[str] = []
        busy = {row.sequence_id for row in asked}
        for row, most in asked.items():
            before = self._cache.known_drafts(row.sequence_id, row.num_known)
            if len(before) >= most:
                drafts[row.sequence_id] = Draft("draft", before[:most])
                continue
            start = self._start_of(row)
            if start is None:
                self.forget(row.sequence_id)
                never.append(row.sequence_id)
            elif drafting := self._begin(row, most, start, busy):
                begun.append(drafting)
        has_caught_up = any(
            drafting.num_known - drafting.start > _FEW + drafting.most for drafting in begun
        )
        num_computed, num_passes = self._catch_up(begun, num_tokens), int(bool(begun))
        ready = [drafting for drafting in begun if drafting.drafts]
        while rows := [drafting for drafting in ready if drafting.wants_more]:
            num_computed += self._compute(rows, [1] * len(rows))
            num_passes += 1
        for drafting in ready:
            self._cache.note(drafting.row.sequence_id, drafting.num_known, drafting.drafts)
            drafts[drafting.row.sequence_id] = Draft("draft", drafting.drafts)
        return Proposals(
            drafts=drafts,
            num_computed=num_computed,
            num_passes=num_passes,
            has_caught_up=has_caught_up,
            never=never,
        )

    def forget(self, sequence_id: str) -> None:
        """Free what a sequence holds; an unknown one is ignored."""
        self._cache.forget(sequence_id)
        self._bases.pop(sequence_id, None)

    def _start_of(self, row: Row) -> int | None:
        """Return the tokens of a sequence that need not be computed.

        Returns:
            None: the sequence is too long, or has tokens that the model lacks.
        """
        if row.num_known >= self._decoder.max_positions:
            return None
        if row.sequence_id not in self._bases:
            if not self._has_embeddings(list(row.sampling.logit_bias)):
                return None
            self._bases[row.sequence_id] = _without_logprobs(row)
        start = self._cache.follow(row.sequence_id, len(row.prompt), row.output)
        return start if self._has_embeddings(row.tokens_between(start, row.num_known)) else None

    def _begin(self, row: Row, most: int, start: int, busy: set[str]) -> _Drafting | None:
        """Begin to draft for a sequence; None: there are no blocks."""
        sequence_id, num_known = row.sequence_id, row.num_known
        most = min(most, self._decoder.max_positions - num_known)
        blocks = self._cache.reserve(sequence_id, num_known + most, busy)
        if not blocks:
            return None
        row = self._bases[sequence_id].with_output(row.output)
        return _Drafting(row, num_known, most, start, blocks)

    def _has_embeddings(self, token_ids: Sequence[int]) -> bool:
        """Return True unless the model's vocabulary lacks one: it may be padded to less."""
        return max(token_ids, default=0) < self._decoder.config.vocab_size

    def _catch_up(self, begun: Sequence[_Drafting], num_tokens: int) -> int:
        """Compute what is known of sequences, and their first drafts; return the tokens computed.

        A sequence that the tokens do not suffice for goes on with the next step.
        """
        rows, counts = [], []
        left = num_tokens
        # A prompt must not keep the others waiting that need a token or two.
        for drafting in sorted(begun, key=lambda drafting: drafting.num_known - drafting.start):
            count = min(drafting.num_known - drafting.start, left)
            if count:
                rows.append(drafting)
                counts.append(count)
                left -= count
        return self._compute(rows, counts) if rows else 0

    def _compute(self, rows: Sequence[_Drafting], counts: Sequence[int]) -> int:
        """Compute so many further tokens of each sequence; return the tokens of all."""
        batch = self._lay_out(rows, counts)
        with torch.inference_mode(), self._runtime.step():
            logits = self._forward(batch)
            sampled: list[int] = []
            if batch.yielding:
                sampled = self._sampler.sample_step(logits, batch.yielding).token_ids.tolist()
        drawn = dict(zip(batch.yielding, sampled, strict=True))
        for drafting, count in zip(rows, counts, strict=True):
            drafting.start += count
            token_id = drawn.get(drafting.row)
            if token_id is None:
                self._cache.note(drafting.row.sequence_id, drafting.start)
            elif token_id < 0:
                drafting.is_over = True
            else:
                drafting.drafts.append(token_id)
                drafting.row.output.append(token_id)
        return sum(counts)

    def _forward(self, batch: FlatBatch) -> Tensor:
        return self._decoder.forward(
            batch.token_ids, self._kv_cache, batch.attention, logits_rows=batch.logits_at
        )

    def _lay_out(self, rows: Sequence[_Drafting], counts: Sequence[int]) -> FlatBatch:
        step = Step(
            sequence_ids=[drafting.row.sequence_id for drafting in rows],
            num_tokens=counts,
            starts=[drafting.start for drafting in rows],
            block_tables=[drafting.blocks for drafting in rows],
        )
        return flatten(
            step,
            {drafting.row.sequence_id: drafting.row for drafting in rows},
            block_size=self._block_size,
            device=self._runtime.device,
        )


def _without_logprobs(row: Row) -> Row:
    """Return the row without its output: of drafts no log-probabilities are shown."""
    return Row(
        sequence_id=row.sequence_id,
        request=row.request,
        sampling=replace(row.sampling, logprobs=None),
        prompt=row.prompt,
        seed=row.seed,
        is_plain=row.is_plain,
        is_single=row.is_single,
    )
