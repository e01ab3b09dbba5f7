"""What the engine asks of a device: memory, streams, events and a dozen kernels.

Whatever is written against these protocols runs on any backend. A backend is one module of this
package (see `registry`); `reference` holds the kernels in plain torch, which the others must equal.
"""

from types import TracebackType
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from tandem_engine.device.attention import AttentionMetadata


class Memory(NamedTuple):
    """Memory that this process may use on the device, in bytes."""

    total: int
    """The most that this process should ever hold."""
    used: int
    """What it holds now."""


class Event(Protocol):
    """A point in a stream's work that others can wait for."""

    def record(self, stream: "Stream") -> None:
        """Mark the work that was put into `stream` so far."""

    def synchronize(self) -> None:
        """Block the host until the marked work is done."""


class Stream(Protocol):
    """A queue of device work; inside `with stream:` kernels go into it."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def wait(self, event: Event) -> None:
        """Let work that is put in from now on start only after `event`."""

    def synchronize(self) -> None:
        """Block the host until the queue is empty."""


class Kernels(Protocol):
    """The operations that a decoder is made of. Results are new tensors of the inputs' dtype."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[tokens, in] with weight [out, in] and bias [out] → [tokens, out]."""

    def embedding(self, token_ids: Tensor, weight: Tensor) -> Tensor:
        """[tokens] int64 with weight [vocab, hidden] → [tokens, hidden]."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Scale the last dimension to root mean square 1, then by `weight`; inside in float32.

        Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
        """

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return rms_norm(x + residual), and x + residual itself: the new residual."""

    def rotary(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Turn pairs (i, i + head_dim / 2) of each head by the angle of their token.

        Su et al., "RoFormer", 2021, in the halves layout of Hugging Face.

        Args:
            q: [tokens, heads, head_dim].
            k: [tokens, kv_heads, head_dim].
            cos: [tokens, head_dim], both halves alike.
            sin: [tokens, head_dim], both halves alike.
        """

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[tokens, 2 * width], gates first → silu(gate) * up, [tokens, width]."""

    def write_kv(
        self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, metadata: AttentionMetadata
    ) -> None:
        """Store K and V of every token, [tokens, kv_heads, head_dim], in its slot of the cache.

        A block whose first token this step writes is wiped before. Attention multiplies what stands
        behind a row's last token by 0, and 0 times NaN, left there by a request that went wrong,
        would spoil the next one.

        The caches are [num_blocks, kv_heads, block_size, head_dim].
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
        in the cache.

        Args:
            q: [tokens, heads, head_dim].
            k_cache: [num_blocks, kv_heads, block_size, head_dim].
            v_cache: Like `k_cache`.
            metadata: Rows, contexts and blocks of the step.
            scale: Usually head_dim ** -0.5.

        Returns:
            [tokens, heads * head_dim].
        """


class DeviceRuntime(Protocol):
    """One device as one process sees it."""

    @property
    def name(self) -> str:
        """Name of the backend: cpu, cuda, npu."""

    @property
    def device(self) -> torch.device:
        """Where tensors live."""

    @property
    def kernels(self) -> Kernels:
        """The backend's kernels."""

    def stream(self) -> Stream:
        """A new stream."""

    def event(self) -> Event:
        """A new event."""

    def memory(self) -> Memory:
        """How much this process may hold, and holds."""

    def set_num_threads(self, num_threads: int) -> None:
        """Use so many compute threads on the host; at least 1."""
