"""The runner of one rank: keeps each sequence's tokens and turns a step into new ones."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.request import Request
from tandem_engine.api.step import Candidate, SampledToken, Step, StepResult
from tandem_engine.device.blocks import copy_blocks, swap_in, swap_out
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.model.decoder import Decoder, KVCache
from tandem_engine.runner.batch import NO_DRAFTS, FlatBatch, flatten
from tandem_engine.runner.drafts import Drafter, accepted, usable
from tandem_engine.runner.places import Places, split
from tandem_engine.runner.rows import Rows
from tandem_engine.sampling.candidates import candidates_of
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.sampler import Sampler

NOT_FINITE: Final = "the model's logits are not finite numbers"


class ModelRunner:
    """Implements `tandem_engine.api.step.Runner` on one device.

    Args:
        decoder: The model.
        kv_cache: Its blocks on the device.
        runtime: The device.
        block_size: Tokens of a KV block.
        host_cache: Blocks for swapped-out sequences, from `allocate_host_cache`; None: no step
            swaps.
        drafter: Guesses tokens where a step asks for drafts; None: no guess is ever right.
    """

    def __init__(
        self,
        decoder: Decoder,
        kv_cache: KVCache,
        *,
        runtime: DeviceRuntime,
        block_size: int,
        host_cache: Tensor | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        self._decoder = decoder
        self._kv_cache = kv_cache
        self._runtime = runtime
        self._block_size = block_size
        self._host_cache = host_cache
        self._drafter = drafter
        self._sampler = Sampler()
        self._rows = Rows()

    def add(self, request: Request) -> None:
        """Learn the prompt and the sampling of a request before its first step."""
        self._rows.add(request)

    def remove(self, sequence_id: str) -> None:
        """Forget a sequence; unknown ids are ignored. One that does not exist yet never will."""
        self._rows.remove(sequence_id)

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Compute `step`: move beams → copy blocks → flatten → forward → sample."""
        self._rows.move(step.beam_moves)
        self._copy(step)
        if not step.sequence_ids:
            return StepResult()
        batch = flatten(
            step,
            self._rows.by_id,
            block_size=self._block_size,
            device=self._runtime.device,
            drafts=self._propose(step.num_drafts) if step.num_drafts else NO_DRAFTS,
        )
        logits = self.forward(batch)
        return self._sample(logits, batch)

    def forward(self, batch: FlatBatch) -> Tensor:
        """Logits of the yielding positions: float32 [yielding positions, vocabulary]."""
        return self._decoder.forward(
            batch.token_ids,
            self._kv_cache,
            batch.attention,
            logits_rows=batch.yield_at,
        )

    def _copy(self, step: Step) -> None:
        blocks = self._kv_cache.blocks
        if step.swapped_out:
            swap_out(blocks, self._host(), step.swapped_out)
        if step.swapped_in:
            swap_in(blocks, self._host(), step.swapped_in)
        if step.copied:
            copy_blocks(blocks, step.copied)

    def _host(self) -> Tensor:
        if self._host_cache is None:
            raise ValueError("the step swaps KV blocks, but there are no host blocks; a bug")
        return self._host_cache

    def _propose(self, num_drafts: Mapping[str, int]) -> Mapping[str, Sequence[int]]:
        if self._drafter is None:
            return NO_DRAFTS
        vocab_size = self._decoder.config.vocab_size
        return {
            sequence_id: usable(
                self._drafter.propose(self._rows.by_id[sequence_id].tokens, count),
                count,
                vocab_size,
            )
            for sequence_id, count in num_drafts.items()
        }

    def _sample(self, logits: Tensor, batch: FlatBatch) -> StepResult:
        if not batch.yielding:
            return StepResult()
        if not batch.drafts and all(row.is_single for row in batch.yielding):
            return self._sample_singles(logits, batch.yielding)
        beams, drawn = split(batch, self._rows)
        failed: dict[str, str] = {}
        tokens = self._tokens_of(logits, drawn, batch.drafts, failed)
        candidates = _candidates_of(logits, beams, failed)
        return StepResult(tokens=tokens, candidates=candidates, failed=failed)

    def _sample_singles(self, logits: Tensor, rows: Sequence[Row]) -> StepResult:
        """As most steps are: one token a row, without drafts, beams and choices to bring about."""
        tokens: dict[str, Sequence[SampledToken]] = {}
        failed: dict[str, str] = {}
        for row, token in zip(rows, self._sampler.sample(logits, rows), strict=True):
            if token is None:
                failed[row.sequence_id] = NOT_FINITE
            else:
                row.output.append(token.token_id)
                tokens[row.sequence_id] = (token,)
        return StepResult(tokens=tokens, failed=failed)

    def _tokens_of(
        self,
        logits: Tensor,
        places: Places,
        drafts: Mapping[str, Sequence[int]],
        failed: dict[str, str],
    ) -> dict[str, Sequence[SampledToken]]:
        """Append its new tokens to each row; one that has none goes to `failed`."""
        tokens: dict[str, Sequence[SampledToken]] = {}
        if not places.rows:
            return tokens
        sampled = iter(self._sampler.sample(places.logits_of(logits), places.positions))
        for row, count in zip(places.rows, places.counts, strict=True):
            of_row = list(islice(sampled, count))
            got = accepted(of_row, drafts.get(row.sequence_id, ()) if count > 1 else ())
            if got:
                row.output += [token.token_id for token in got]
                tokens[row.sequence_id] = got
            else:
                failed[row.sequence_id] = NOT_FINITE
        return tokens


def _candidates_of(
    logits: Tensor, places: Places, failed: dict[str, str]
) -> dict[str, Sequence[Candidate]]:
    """The continuations of each beam; a beam without any goes to `failed`."""
    candidates: dict[str, Sequence[Candidate]] = {}
    if not places.rows:
        return candidates
    found = candidates_of(places.logits_of(logits), places.rows)
    for row, of_row in zip(places.rows, found, strict=True):
        if of_row is None:
            failed[row.sequence_id] = NOT_FINITE
        else:
            candidates[row.sequence_id] = of_row
    return candidates
