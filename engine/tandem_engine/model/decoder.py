"""The forward pass of a decoder-only transformer, written once for every device.

It knows shapes and order; every operation is a kernel that is handed in, and where K and V stand
is the business of the cache and of the step's metadata.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem_engine.api.config import KVCacheDType
from tandem_engine.api.errors import ConfigError
from tandem_engine.device.allocation import host_zeros, zeros
from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.packed_model import PackedModel, StepStages
from tandem_engine.device.runtime import Kernels, LinearAllReduce
from tandem_engine.device.sampling import RowSampler
from tandem_engine.kvcache.layout import CacheLayout
from tandem_engine.model.config import DecoderConfig
from tandem_engine.model.decode_graphs import DecodeGraphs
from tandem_engine.model.kernel_stages import KernelStages, KernelStep, LayerCache, LinearSum
from tandem_engine.model.stages import (
    NoPeers,
    Scoring,
    ShareReducer,
    StageInputs,
    Stages,
    check_has_no_decodes,
    compute_stages,
    drive,
    own_rows,
    padded_rows,
)
from tandem_engine.parallel.plan import RankPlan, whole_plan


@dataclass(frozen=True, slots=True)
class KVCache:
    """K and V of all layers. All of it is one tensor, so that a block moves in one operation."""

    blocks: Tensor
    """As `CacheLayout.shape` says. In 8 bits the last two sizes are a page of `kv_int8`."""
    layers: tuple[LayerCache, ...]
    """The same memory, layer by layer."""
    layout: CacheLayout

    def __getitem__(self, layer: int) -> LayerCache:
        """K and V of one layer."""
        return self.layers[layer]

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self.layers)


class Decoder:
    """A decoder with its parameters; one instance serves any number of sequences.

    Args:
        config: Its shape.
        packed_model: Its parameters.
        kernels: The device's, which also packed the packed_model.
        quantization: Describes the layers in 8 bits, for the log; None: there are none.
        plan: The part of the model that the packed_model is; None: all of it.
    """

    def __init__(
        self,
        config: DecoderConfig,
        packed_model: PackedModel,
        kernels: Kernels,
        *,
        quantization: str | None = None,
        plan: RankPlan | None = None,
    ) -> None:
        self.config = config
        self.packed_model = packed_model
        self.quantization = quantization
        self.plan = plan or whole_plan(config)
        self._is_whole = self.plan.shape.tp == self.plan.shape.pp == 1
        self._kernels = kernels
        self._forward_pass = kernels.forward_pass(packed_model)
        self._graphs: DecodeGraphs | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights that are not in 8 bits, and of the KV cache unless it is int8."""
        return self.packed_model.dtype

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.packed_model.rope.device

    @property
    def max_positions(self) -> int:
        """Tokens that one sequence may have."""
        return len(self.packed_model.rope)

    def row_sampler(self) -> RowSampler | None:
        """A sampler of the kernels' device for what its logits are reduced to; None: torch does."""
        return self._kernels.row_sampler()

    def kv_dtype(self, kv_cache_dtype: KVCacheDType) -> torch.dtype:
        """Type of the KV cache where the settings say `kv_cache_dtype`."""
        return torch.int8 if kv_cache_dtype == "int8" else self.dtype

    def cache_layout(self, block_size: int, dtype: torch.dtype | None = None) -> CacheLayout:
        """The layout of a KV cache for this decoder's layers and KV heads.

        Args:
            block_size: Tokens of a block.
            dtype: int8 or that of the decoder, which None stands for.

        Raises:
            ConfigError: The model's heads cannot be in 8 bits.
        """
        packed_model = self.packed_model
        return CacheLayout(
            num_layers=len(packed_model.layers),
            num_kv_heads=packed_model.num_kv_heads,
            head_dim=packed_model.head_dim,
            dtype=str(dtype or self.dtype).removeprefix("torch."),
            block_size=block_size,
        )

    def forward(
        self,
        token_ids: Tensor,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
        *,
        logits_rows: Tensor,
        scoring: Scoring | None = None,
    ) -> Tensor:
        """Compute one step: write the tokens' K and V, return the logits that are asked for.

        To be called under torch.inference_mode.

        Args:
            token_ids: [tokens] int64, all rows one after another.
            kv_cache: Written at the slots of the step, read up to each row's context.
            metadata: Rows, contexts and blocks of the step.
            logits_rows: [n] int64, tokens of the flat batch whose next token is sampled; before
                them those that are scored.
            scoring: Takes the logits of the scored ones; None: there are none.

        Returns:
            [n, vocab] float32, of those that are sampled.
        """
        if not self._is_whole:
            raise AssertionError("ranks that share a model compute its stages; this is a bug")
        if scoring is not None or self._graphs is not None:
            stages = self.stages(
                token_ids, kv_cache, metadata, logits_rows=logits_rows, scoring=scoring
            )
            return _present(drive(stages, NoPeers()))
        if self._forward_pass is not None:
            return self._forward_pass(token_ids, kv_cache.blocks, metadata, logits_rows)
        return self.forward_by_kernels(token_ids, kv_cache, metadata, logits_rows=logits_rows)

    def forward_by_kernels(
        self,
        token_ids: Tensor,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
        *,
        logits_rows: Tensor,
    ) -> Tensor:
        """The same, kernel by kernel: what a forward pass of the device's own must equal."""
        step = KernelStep(
            token_ids=token_ids,
            cache=kv_cache.layers,
            metadata=metadata,
            logits_rows=logits_rows,
            num_rows=len(token_ids),
        )
        return _present(
            drive(self._all_stages(lambda: self._by_kernels(step), self._inputs(step)), NoPeers())
        )

    def reserve(self, num_tokens: int) -> None:
        """Have room for steps that are under way at once and have so many tokens together.

        Torch's allocator of a device keeps memory itself; only a forward pass of the device's own
        has to be told.
        """
        if self._forward_pass is not None:
            # Under sp the rows of each half are rounded up to a multiple of the ranks.
            self._forward_pass.reserve(num_tokens + 2 * (self.plan.num_tp - 1))

    def stages(
        self,
        token_ids: Tensor,
        kv_cache: KVCache,
        metadata: AttentionMetadata,
        *,
        logits_rows: Tensor,
        hidden: Tensor | None = None,
        sequence_parallel: bool = False,
        scoring: Scoring | None = None,
        reducer: ShareReducer | None = None,
        linear_sum: LinearSum | None = None,
    ) -> Stages:
        """Compute one step of this rank's part of the model, to be driven: see `stages.drive`.

        To be called and driven under torch.inference_mode. One step at a time.

        Args:
            token_ids: As for `forward`, the same on all ranks.
            kv_cache: The rank's own.
            metadata: As for `forward`.
            logits_rows: As for `forward`.
            hidden: Result of the pipeline stage before, on this rank of tp; None for the first.
            sequence_parallel: True if the ranks of tp share the rows between layers' matrices.
            scoring: As for `forward`.
            reducer: Makes less of the logits that are sampled from; None: all are given.
            linear_sum: `linear_all_reduce` among these ranks; None: collectives add up.

        Raises:
            AssertionError: `sequence_parallel`, but a row decodes.
        """
        plan, num_tokens, rows = self.plan, len(token_ids), None
        num_rows = num_tokens
        if sequence_parallel:
            check_has_no_decodes(metadata)
            rows, num_rows = own_rows(num_tokens, plan), padded_rows(num_tokens, plan)
        step = KernelStep(
            token_ids=token_ids,
            cache=kv_cache.layers,
            metadata=metadata,
            logits_rows=logits_rows,
            num_rows=num_rows,
            linear_sum=linear_sum,
        )
        forward_pass = self._forward_pass
        inputs = self._inputs(step, hidden, rows, scoring, reducer)
        if forward_pass is None:
            may_replay = scoring is None and not sequence_parallel
            graphs = self._graphs if may_replay else None
            return self._all_stages(lambda: self._by_kernels(step, graphs), inputs)
        return self._all_stages(
            lambda: forward_pass.stages(
                token_ids, kv_cache.blocks, metadata, logits_rows, num_rows=num_rows
            ),
            inputs,
        )

    def linear_all_reduce(self) -> LinearAllReduce:
        """The operator that multiplies, and adds up among the ranks that share layers.

        Raises:
            ConfigError: The device has none, or it does not take the model's layers.
        """
        return self._kernels.linear_all_reduce(self.packed_model)

    def record_graphs(self, kv_cache: KVCache, *, max_rows: int) -> None:
        """Record steps of decodes, for `stages` and `forward` to replay from now on.

        To be called under torch.inference_mode.

        Args:
            kv_cache: That of all steps; its last blocks are of no sequence (`num_spare_blocks`).
            max_rows: Most rows of a step.

        Raises:
            ConfigError: The device has no graphs.
        """
        graphs = self._kernels.graphs()
        if graphs is None:
            raise ConfigError(
                f"device {self.device.type} has no graphs that are built in Python; leave graph out"
            )
        self._graphs = DecodeGraphs(
            self.packed_model,
            self._kernels,
            graphs,
            cache=kv_cache,
            max_rows=max_rows,
            has_collectives=self.plan.num_tp > 1,
        )

    def _by_kernels(self, step: KernelStep, graphs: DecodeGraphs | None = None) -> StepStages:
        replayed = None if graphs is None else graphs.stages(step)
        return replayed or KernelStages(self.packed_model, self._kernels, step)

    def _inputs(
        self,
        step: KernelStep,
        hidden: Tensor | None = None,
        rows: slice | None = None,
        scoring: Scoring | None = None,
        reducer: ShareReducer | None = None,
    ) -> StageInputs:
        return StageInputs(
            num_logits=len(step.logits_rows) - (scoring.num_rows if scoring else 0),
            vocab_size=self.config.vocab_size,
            hidden=hidden,
            rows=rows,
            scoring=scoring,
            reducer=reducer,
            sums_are_whole=step.linear_sum is not None,
        )

    def _all_stages(self, begin: Callable[[], StepStages], inputs: StageInputs) -> Stages:
        """`begin` is called when the first stage is due: one that never is holds no memory."""
        stages = begin()
        try:
            return (yield from compute_stages(stages, self.plan, inputs))
        finally:
            stages.close()


def _present(logits: Tensor | None) -> Tensor:
    assert logits is not None, "the first rank of tp gives logits; this is a bug"  # noqa: S101
    return logits


def allocate_kv_cache(
    layout: CacheLayout, *, num_blocks: int, device: torch.device | str
) -> KVCache:
    """A cache of zeros.

    Zeros, because attention multiplies what stands behind the last token of a block by a weight
    of 0, and 0 times what happened to be in memory may not be a number.

    Args:
        layout: Its layers; `Decoder.cache_layout`.
        num_blocks: How many.
        device: Where they go.
    """
    blocks = zeros(layout.shape(num_blocks), getattr(torch, layout.dtype), device)
    return KVCache(blocks, tuple((layer[0], layer[1]) for layer in blocks), layout)


def allocate_host_cache(kv_cache: KVCache, *, num_blocks: int) -> Tensor:
    """Room in main memory for blocks of `kv_cache` that were swapped out.

    Returns:
        As `CacheLayout.host_shape` says: a block is one piece.
    """
    blocks = kv_cache.blocks
    return host_zeros(kv_cache.layout.host_shape(num_blocks), blocks.dtype, blocks.device)
