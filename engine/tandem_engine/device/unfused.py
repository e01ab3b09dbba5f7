"""Stages of two kernels, one after the other: for kernels without one operator for both."""

from torch import Tensor

from tandem_engine.api.errors import ConfigError
from tandem_engine.api.micro_batches import MC2_NEEDS_CARDS
from tandem_engine.device.graphs import Graphs
from tandem_engine.device.packed_model import PackedLinear, PackedModel
from tandem_engine.device.runtime import Kernels, LinearAllReduce


class UnfusedKernels:
    """A base of `runtime.Kernels`; a backend with a fused operator overrides its method."""

    def norm_linear(
        self: Kernels,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        eps: float,
        packed: PackedLinear,
    ) -> tuple[Tensor, Tensor]:
        """See `Kernels`."""
        if residual is None:
            return self.linear(self.rms_norm(x, weight, eps), packed), x
        normed, total = self.add_rms_norm(x, residual, weight, eps)
        return self.linear(normed, packed), total

    def silu_mul_linear(self: Kernels, gate_up: Tensor, packed: PackedLinear) -> Tensor:
        """See `Kernels`."""
        return self.linear(self.silu_mul(gate_up), packed)

    def graphs(self) -> Graphs | None:
        """None: there are none."""
        return None

    def linear_all_reduce(self, packed_model: PackedModel) -> LinearAllReduce:  # noqa: ARG002
        """Raise ConfigError: there is none."""
        raise ConfigError(MC2_NEEDS_CARDS)
