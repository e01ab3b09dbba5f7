"""Between flat batches and messages: what rank 0 sends, and what the other ranks make of it.

Both lay a batch out by the same functions, so that the arrays which a forward pass reads are the
same on all ranks.
"""

import struct
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tandem_engine.api.step import Step
from tandem_engine.device.attention import (
    AttentionMetadata,
    Int32s,
    Ints,
    advance_attention,
    lay_out_attention,
)
from tandem_engine.device.host_memory import HostInts, to_device
from tandem_engine.microbatch.prices import CutPrices
from tandem_engine.runner.batch import ALL_FED, NO_DRAFTS, Feed, FlatBatch
from tandem_engine.runner.prompt_scoring import PromptScoring
from tandem_engine.runner.rank_messages import (
    BatchColumns,
    DecodedBatch,
    FedTokens,
    ScoredTokens,
    StepDecoder,
)

_NO_ROWS: Final = ()
_PRICES: Final = b"\xff" * 4
"""Begin of a message of prices: no kind of the others."""
_RECORDING: Final = b"\xfe" * 4
_NUM_STEPS: Final = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class NewPrices:
    """The prices by which steps are cut from now on; None: none is."""

    prices: CutPrices | None


def prices_message(prices: CutPrices | None) -> bytes:
    """The message that hands prices to the other ranks."""
    return _PRICES + (b"" if prices is None else prices.encode())


def read_prices(message: bytes) -> NewPrices | None:
    """The prices of a message; None: it is one for `RankBatches.decode`."""
    if message[: len(_PRICES)] != _PRICES:
        return None
    encoded = message[len(_PRICES) :]
    return NewPrices(CutPrices.decode(encoded) if encoded else None)


@dataclass(frozen=True, slots=True)
class NewRecording:
    """Order to record steps; of 0 steps: to report those that were recorded."""

    num_steps: int


def recording_message(num_steps: int) -> bytes:
    """The message that has the other ranks record steps; see `NewRecording`."""
    return _RECORDING + _NUM_STEPS.pack(num_steps)


def read_recording(message: bytes) -> NewRecording | None:
    """The order of a message; None: it is one for `RankBatches.decode`."""
    if message[: len(_RECORDING)] != _RECORDING:
        return None
    return NewRecording(*_NUM_STEPS.unpack(message[len(_RECORDING) :]))


def columns_of(batch: FlatBatch, *, hands_tokens: bool = False) -> BatchColumns:
    """Return the parts of a batch of rank 0 that the other ranks need.

    Args:
        batch: Its tokens are fed in.
        hands_tokens: True: those that were fed go from device to device, and none is read here.
    """
    token_ids, fed = batch.host_token_ids, _fed_tokens(batch)
    if not hands_tokens or token_ids is None:
        token_ids, fed = batch.token_ids.cpu().numpy(), None
    return BatchColumns(
        sequence_ids=batch.sequence_ids,
        block_tables=batch.block_tables,
        row_starts=batch.attention.row_starts,
        context_lens=batch.attention.context_lens,
        token_ids=token_ids,
        yield_at=batch.yield_at.array,
        fed=fed,
        scored=None if batch.scoring is None else _scored_tokens(batch.scoring),
        num_top=batch.num_top,
    )


def _fed_tokens(batch: FlatBatch) -> FedTokens | None:
    fed, sampled = batch.fed, batch.sampled
    if fed is None or sampled is None:
        return None
    if fed.targets is None or fed.sources is None:
        return FedTokens(len(sampled), None, None)
    return FedTokens(len(sampled), fed.targets.array, fed.sources.array)


def _scored_tokens(scoring: PromptScoring) -> ScoredTokens:
    return ScoredTokens(scoring.at.array, scoring.token_ids.array, scoring.num_top)


class RankBatches:
    """Makes batches of the messages that a rank other than 0 gets.

    Args:
        block_size: Tokens of a KV block.
        device: Where the tensors go.
    """

    def __init__(self, *, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        self._device = device
        self._decoder = StepDecoder()
        self._last: FlatBatch | None = None

    def decode(self, message: bytes) -> Step | FlatBatch:
        """Return the batch for `Worker.compute`, or a step of copies alone for `Worker.copy`.

        The batch names no rows: those are sampled on rank 0. Where tokens are fed, its `sampled`
        is room for those of the step before, which rank 0 broadcasts.

        Raises:
            BadMessage: It is not the next message of rank 0, or damaged.
        """
        decoded = self._decoder.decode(message)
        if isinstance(decoded, Step):
            return decoded
        last = self._last
        if decoded.is_continued and last is not None:
            attention, yield_at = _advanced(last.attention, decoded), last.yield_at
        else:
            attention = self._laid_out(decoded)
            yield_at = HostInts(decoded.yield_at, self._device)
        self._last = FlatBatch(
            token_ids=to_device(decoded.token_ids, self._device),
            attention=attention,
            yield_at=yield_at,
            yielding=_NO_ROWS,
            drafts=NO_DRAFTS,
            fed=None if decoded.fed is None else self._feed(decoded.fed),
            sampled=None if decoded.fed is None else self._room_for(decoded.fed),
            scoring=None if decoded.scored is None else self._scoring(decoded.scored),
            num_top=decoded.num_top,
        )
        return self._last

    def _feed(self, fed: FedTokens) -> Feed:
        if fed.targets is None or fed.sources is None:
            return ALL_FED
        return Feed(HostInts(fed.targets, self._device), HostInts(fed.sources, self._device))

    def _room_for(self, fed: FedTokens) -> Tensor:
        return torch.empty(fed.num_sampled, dtype=torch.int64, device=self._device)

    def _scoring(self, scored: ScoredTokens) -> PromptScoring:
        return PromptScoring(
            at=HostInts(scored.at, self._device),
            token_ids=HostInts(scored.token_ids, self._device),
            num_top=scored.num_top,
        )

    def _laid_out(self, decoded: DecodedBatch) -> AttentionMetadata:
        num_blocks = -(-decoded.context_lens // self._block_size)
        return lay_out_attention(
            decoded.query_lens,
            decoded.context_lens,
            decoded.tables.gather(decoded.table_ids, num_blocks),
            block_size=self._block_size,
            device=self._device,
        )


def _advanced(before: AttentionMetadata, decoded: DecodedBatch) -> AttentionMetadata:
    def blocks_of(rows: Ints, numbers: Ints) -> Int32s:
        return decoded.tables.blocks(decoded.table_ids[rows], numbers)

    return advance_attention(before, blocks_of)
