"""Steps of decodes as graphs of a device, for as many rows as a power of two or the batch limit.

Attention is called by itself, since the host tells it how long each context is; what lies between
two attentions, or between one and a collective, is one graph (vLLM's piecewise graphs):

    embed, norm, QKV │ attention │ output, MLP, norm, QKV │ attention │ … │ norm │ head

A step has the rows of the next larger graph. Rows without a sequence compute what no other row
reads, and write into blocks of no sequence.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import torch
from torch import Tensor

from tandem_engine.device.graphs import (
    DecodeInputs,
    DecodeShape,
    Graph,
    Graphs,
    num_spare_blocks,
)
from tandem_engine.device.packed_model import PackedModel
from tandem_engine.device.runtime import Kernels
from tandem_engine.model.kernel_stages import KernelStages, KernelStep, LayerCache, present

Play = Callable[[KernelStep], None]
"""Queues a piece of a step: a graph, or attention over the step's own contexts."""

_ANY_TOKEN: Final = 0


class GraphCache(Protocol):
    """The part of a KV cache that graphs are recorded on; see `decoder.KVCache`."""

    @property
    def blocks(self) -> Tensor:
        """[layers, 2, blocks, kv_heads, block_size, head_dim]."""

    @property
    def layers(self) -> tuple[LayerCache, ...]:
        """The same memory, layer by layer."""


class DecodeGraphs:
    """The graphs of a decoder's steps of decodes, on one rank.

    Args:
        packed_model: The rank's part of the model.
        kernels: The device's.
        graphs: Makes graphs.
        cache: The rank's KV cache; its last blocks are of no sequence (`num_spare_blocks`).
        max_rows: Most rows of a step.
        has_collectives: True if ranks add up what stages give: then each ends a graph.
    """

    def __init__(
        self,
        packed_model: PackedModel,
        kernels: Kernels,
        graphs: Graphs,
        *,
        cache: GraphCache,
        max_rows: int,
        has_collectives: bool,
    ) -> None:
        self._packed_model = packed_model
        self._kernels = kernels
        self.sizes = graph_sizes(max_rows)
        """Rows of each graph, ascending."""
        _, _, num_blocks, _, block_size, _ = cache.blocks.shape
        first_spare = num_blocks - num_spare_blocks(max_rows, block_size)
        record = partial(
            _Recorded,
            packed_model,
            kernels,
            cache=cache,
            first_spare=first_spare,
            has_collectives=has_collectives,
        )
        # Kernels make what they keep at their first call, which is no part of a graph.
        record(replace(graphs, new=_DoneAtOnce), num_rows=max_rows)
        # The largest first: smaller ones find their memory in what it has taken.
        self._recorded = {size: record(graphs, num_rows=size) for size in reversed(self.sizes)}

    def stages(self, step: KernelStep) -> "GraphStages | None":
        """Begin a step; None: it is none of decodes alone, or has more rows than any graph.

        One step at a time: the next may begin when all of this one is queued.
        """
        metadata = step.metadata
        num_rows = metadata.num_rows
        is_plain = metadata.num_decode_rows == num_rows == len(step.logits_rows)
        if not is_plain or not 0 < num_rows <= self.sizes[-1]:
            return None
        recorded = self._recorded[self.sizes[bisect_left(self.sizes, num_rows)]]
        return GraphStages(self._packed_model, self._kernels, recorded, step)


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """Rows of the graphs for steps of up to `max_rows`: powers of two, and as many."""
    powers = (1 << power for power in range((max_rows - 1).bit_length()))
    return (*powers, max_rows)


class GraphStages:
    """Implements `device.packed_model.StepStages` by graphs that were recorded."""

    def __init__(
        self, packed_model: PackedModel, kernels: Kernels, recorded: "_Recorded", step: KernelStep
    ) -> None:
        self._packed_model, self._kernels = packed_model, kernels
        self._recorded, self._step = recorded, step
        self._pieces: Iterator[list[Play]] = iter(recorded.pieces)
        self._is_final = False
        recorded.load(step)

    @property
    def hidden(self) -> Tensor:
        """See `StepStages`, as for all methods."""
        return self._recorded.hidden[: self._step.metadata.num_rows]

    def embed(self) -> None:
        """Look up the tokens of this rank."""
        self._play()

    def resume(self, hidden: Tensor, rows: slice | None) -> None:
        """Go on with another rank's hidden states."""
        _check_whole(rows)
        self.hidden.copy_(hidden)
        self._play()

    def attention_norm(self, layer: int, rows: slice) -> None:  # noqa: ARG002
        """Raise: no rows are shared out."""
        _check_whole(rows)

    def attention(self, layer: int, *, is_normed: bool) -> None:  # noqa: ARG002
        """Attention, and output projection where a collective follows."""
        self._play()

    def mlp_norm(self, layer: int, rows: slice) -> None:  # noqa: ARG002
        """Raise: no rows are shared out."""
        _check_whole(rows)

    def mlp(self, layer: int, *, is_normed: bool) -> None:  # noqa: ARG002
        """Feed-forward layer."""
        self._play()

    def leave(self, rows: slice | None) -> None:
        """Add the residual."""
        _check_whole(rows)
        self._play()

    def logits(self, rows: slice) -> Tensor:
        """The head's columns of this rank, computed by themselves: they are handed on."""
        if not self._is_final:
            self._play()
            self._is_final = True
        return self._kernels.linear(self.hidden[rows], present(self._packed_model.head)).float()

    def close(self) -> None:
        """Do nothing: graphs keep their memory."""

    def _play(self) -> None:
        """Queue the pieces of the next stage."""
        for play in next(self._pieces):
            play(self._step)


class _Recorded:
    """One step of decodes, recorded stage by stage.

    Attributes:
        pieces: By stage, in the order in which stages are called.
        hidden: [rows, hidden]: what collectives add up, and what the head reads.
    """

    def __init__(
        self,
        packed_model: PackedModel,
        kernels: Kernels,
        graphs: Graphs,
        *,
        cache: GraphCache,
        first_spare: int,
        num_rows: int,
        has_collectives: bool,
    ) -> None:
        device = packed_model.rope.device
        shape = DecodeShape(
            num_rows=num_rows,
            num_kv_heads=packed_model.num_kv_heads,
            block_size=cache.blocks.shape[4],
            first_spare=first_spare,
            device=device,
        )
        self._inputs: DecodeInputs = graphs.inputs(shape)
        self._cache = cache
        self._token_ids = torch.full((num_rows,), _ANY_TOKEN, dtype=torch.int64, device=device)
        step = KernelStep(
            token_ids=self._token_ids,
            cache=cache.layers,
            metadata=self._inputs.metadata,
            logits_rows=torch.arange(num_rows, device=device),
            num_rows=num_rows,
        )
        stages = _RecordingStages(
            packed_model, kernels, step, graphs, has_collectives=has_collectives
        )
        self.hidden = stages.buffer
        self.pieces = stages.record()

    def load(self, step: KernelStep) -> None:
        """Put the inputs of a step in, and wipe the blocks that it begins."""
        metadata = step.metadata
        self._inputs.load(metadata)
        if not metadata.token_offsets.all():
            self._cache.blocks.index_fill_(2, metadata.fresh_blocks, 0)
        self._token_ids[: len(step.token_ids)].copy_(step.token_ids)


class _RecordingStages(KernelStages):
    """Records its stages: what lies between attentions and collectives as one graph each."""

    def __init__(
        self,
        packed_model: PackedModel,
        kernels: Kernels,
        step: KernelStep,
        graphs: Graphs,
        *,
        has_collectives: bool,
    ) -> None:
        super().__init__(packed_model, kernels, step)
        self._new, self._has_collectives = graphs.new, has_collectives
        zeros = partial(
            torch.zeros,
            dtype=kernels.computed_in(packed_model.dtype),
            device=packed_model.rope.device,
        )
        rows, heads, head_dim = step.num_rows, packed_model.num_heads, packed_model.head_dim
        # One of each for all layers: what a graph makes is overwritten by those behind it.
        self.buffer = zeros((rows, packed_model.hidden_size))
        self._q = zeros((rows, heads, head_dim))
        self._attention_out = zeros((rows, heads * head_dim))
        self._recording = ExitStack()
        self._graph: Graph | None = None
        self._pieces: list[list[Play]] = []

    def record(self) -> list[list[Play]]:
        """Return what queues each stage of a step; see `_Recorded.pieces`."""
        cuts = self._has_collectives
        with self._recording:
            if self._packed_model.embedding is None:
                self._hidden = self.buffer
                self._pieces.append([])
            else:
                self._stage(self.embed, cuts=cuts)
            for layer in range(len(self._packed_model.layers)):
                self._stage(partial(self.attention, layer, is_normed=False), cuts=cuts)
                self._stage(partial(self.mlp, layer, is_normed=False), cuts=cuts)
            self._stage(self._end, cuts=True)
        return self._pieces

    def _stage(self, compute: Callable[[], None], *, cuts: bool) -> None:
        """Record a stage; unless it cuts, the next one goes on in the same graph."""
        self._pieces.append([])
        self._begin()
        if self._hidden is self.buffer and self._residual is None:
            # The residual is what comes in here, and stages write into the buffer.
            self._hidden = self.buffer.clone()
        compute()
        if cuts:
            self.buffer.copy_(self.hidden)
            self._hidden = self.buffer
            self._cut()

    def _end(self) -> None:
        """Norm what the head reads, or add the residual for the next pipeline stage."""
        if self._packed_model.head is None:
            self.leave(None)
        else:
            self._hidden = self._last_norm()

    def _attend(self, q: Tensor, cache: LayerCache) -> Tensor:
        self._q.copy_(q)
        self._cut()
        self._pieces[-1].append(partial(self._attend_to_step, cache))
        self._begin()
        return self._attention_out

    def _attend_to_step(self, cache: LayerCache, step: KernelStep) -> None:
        """Attention of a step that is played, whose rows may be fewer."""
        num_rows = step.metadata.num_rows
        attended = self._kernels.paged_attention(
            self._q[:num_rows], *cache, step.metadata, self._packed_model.scale
        )
        self._attention_out[:num_rows].copy_(attended)

    def _begin(self) -> None:
        """Record from here on, if nothing is recorded yet."""
        if self._graph is None:
            self._graph = self._new()
            self._recording.enter_context(self._graph.record())

    def _cut(self) -> None:
        """End the graph, which the stage that is under way queues."""
        graph, self._graph = self._graph, None
        assert graph is not None, "nothing is recorded; this is a bug"  # noqa: S101
        self._recording.close()
        self._pieces[-1].append(lambda _: graph.replay())


class _DoneAtOnce:
    """Implements `graphs.Graph` without a graph: work is done where it is to be recorded."""

    def record(self) -> AbstractContextManager[None]:
        """Do the work."""
        return nullcontext()

    def replay(self) -> None:
        """Do nothing."""


def _check_whole(rows: slice | None) -> None:
    if rows is not None:
        raise AssertionError("steps of decodes share no rows out; this is a bug")
