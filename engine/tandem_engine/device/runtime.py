"""The interface of a device: memory, threads and a dozen kernels; for its streams see `streams`.

Code that uses these protocols alone runs on any backend. A backend is one module of this
package (see `registry`); `reference` holds the kernels in plain torch, which the others must equal.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tandem_engine.api.device_facts import DeviceFacts
from tandem_engine.device.attention import AttentionMetadata
from tandem_engine.device.graphs import Graphs
from tandem_engine.device.packed_model import ForwardPass, PackedLinear, PackedModel
from tandem_engine.device.packing import PackingKernels
from tandem_engine.device.sampling import SamplingKernels
from tandem_engine.kvcache.layout import CacheLayout


class Memory(NamedTuple):
    """Memory that this process may use on the device, in bytes."""

    total: int
    """The most that this process should ever hold."""
    used: int
    """Bytes that it holds now."""


class HeadNorms(NamedTuple):
    """Norms of each head of Q and of K, before they are turned."""

    q: Tensor
    """[head_dim]."""
    k: Tensor
    """[head_dim]."""
    eps: float


class LinearAllReduce(Protocol):
    """An operator that multiplies, and adds up among ranks meanwhile (MindIE's MC2)."""

    def __call__(self, x: Tensor, packed: PackedLinear, group: str) -> Tensor:
        """[tokens, in] → [tokens, out], the sum of all ranks' results.

        Args:
            x: Of this rank; all ranks have as many tokens.
            packed: Of these kernels.
            group: The ranks: `Communicator.handle`.
        """


class Kernels(PackingKernels, SamplingKernels, Protocol):
    """The operations that a decoder is made of. Results are new tensors of the inputs' dtype."""

    def linear(self, x: Tensor, packed: PackedLinear) -> Tensor:
        """[tokens, in] → [tokens, out]. `packed` is of these kernels."""

    def embedding(self, token_ids: Tensor, table: Tensor | PackedLinear) -> Tensor:
        """[tokens] int64 with a table [vocab, hidden] → [tokens, hidden]."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Scale the last dimension to root mean square 1, then by `weight`; inside in float32.

        Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
        """

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return rms_norm(x + residual), and x + residual itself: the new residual."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[tokens, 2 * width], gates first → silu(gate) * up, [tokens, width]."""

    def norm_linear(
        self,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        eps: float,
        packed: PackedLinear,
    ) -> tuple[Tensor, Tensor]:
        """Return linear(rms_norm(x + residual)), and x + residual; None stands for zeros."""

    def silu_mul_linear(self, gate_up: Tensor, packed: PackedLinear) -> Tensor:
        """Return linear(silu_mul(gate_up))."""

    def prepare_attention(
        self,
        qkv: Tensor,
        rope: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        *,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        """Norm and turn Q and K, and store K and V of every token in its slot of the cache.

        Pairs (i, i + head_dim / 2) of each head are turned by the angle of their token (Su et al.,
        "RoFormer", 2021, in the halves layout of Hugging Face).

        Args:
            qkv: [tokens, (heads + 2 * kv_heads) * head_dim]: all heads of Q, then of K, then of V.
                The kernel may write into it.
            rope: [positions, head_dim]: cosines of one half of a head, then sines.
            k_cache: [num_blocks, kv_heads, block_size, head_dim], or in 8 bits: see `kv_int8`.
            v_cache: Like `k_cache`.
            metadata: Rows, contexts and blocks of the step.
            norms: None: the model has none.

        Returns:
            Q, [tokens, heads, head_dim]; may be a view of `qkv`.
        """

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        metadata: AttentionMetadata,
        scale: float,
    ) -> Tensor:
        """Causal attention of each row over its own context in the cache.

        Query head h reads KV head h // (heads / kv_heads) (Ainslie et al., "GQA", 2023); scores are
        multiplied by `scale`; softmax and its sums are in float32. The step's own tokens must be
        in the cache. Slots behind a row's last token have no effect, even if they hold NaN.

        Args:
            q: [tokens, heads, head_dim]; heads side by side, tokens any distance apart.
            k_cache: [num_blocks, kv_heads, block_size, head_dim], or in 8 bits: see `kv_int8`.
            v_cache: Like `k_cache`.
            metadata: Rows, contexts and blocks of the step.
            scale: Usually head_dim ** -0.5.

        Returns:
            [tokens, heads * head_dim].
        """

    def forward_pass(self, packed_model: PackedModel) -> ForwardPass | None:
        """The forward pass of a whole model; None: the decoder calls kernels one by one."""

    def graphs(self) -> Graphs | None:
        """Return what records steps; None: there is nothing to gain by it, or no way."""

    def linear_all_reduce(self, packed_model: PackedModel) -> LinearAllReduce:
        """The operator for the layers of a model whose results ranks add up.

        Raises:
            ConfigError: There is none, or it does not take these layers.
        """


class DeviceRuntime(Protocol):
    """One device as one process sees it."""

    @property
    def name(self) -> str:
        """Name of the backend: cpu, cuda, npu."""

    @property
    def device(self) -> torch.device:
        """The device of tensors."""

    @property
    def kernels(self) -> Kernels:
        """The backend's kernels."""

    def check_cache(self, layout: CacheLayout) -> None:
        """Make sure that the kernels can read such a KV cache.

        Raises:
            ConfigError: They cannot.
        """

    def facts(self) -> DeviceFacts:
        """Describe the device for people."""

    def memory(self) -> Memory:
        """Bytes that this process may hold, and holds."""

    def peak_memory(self, work: Callable[[], object]) -> int:
        """Bytes of `memory` that this process holds at most while `work` runs."""

    def set_num_threads(self, num_threads: int | None, *, rank: int = 0, num_ranks: int = 1) -> str:
        """Use this rank's share of the replica's compute threads on the host, at least 1.

        Args:
            num_threads: Threads of all ranks; None leaves it to the device.
            rank: The rank that this process is.
            num_ranks: Ranks of the replica on this host.

        Returns:
            A description for the log: their number and CPUs.
        """

    def begin_steps(self) -> None:
        """Prepare for steps; called once, when the model is loaded."""

    def step(self) -> AbstractContextManager[None]:
        """Enter for each step: the device's idle work pauses meanwhile."""
