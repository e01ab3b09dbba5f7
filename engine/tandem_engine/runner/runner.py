"""The runner of one rank: keeps each request's tokens and turns a step into new ones."""

import torch
from torch import Tensor

from tandem_engine.api.request import Request
from tandem_engine.api.step import SampledToken, Step, StepResult
from tandem_engine.device.runtime import DeviceRuntime
from tandem_engine.model.decoder import Decoder, KVCache
from tandem_engine.runner.batch import FlatBatch, flatten
from tandem_engine.sampling.row import Row, row_of
from tandem_engine.sampling.sampler import Sampler


class ModelRunner:
    """Implements `tandem_engine.api.step.Runner` on one device."""

    def __init__(
        self, decoder: Decoder, kv_cache: KVCache, *, runtime: DeviceRuntime, block_size: int
    ) -> None:
        self._decoder = decoder
        self._kv_cache = kv_cache
        self._runtime = runtime
        self._block_size = block_size
        self._sampler = Sampler()
        self._rows: dict[str, Row] = {}

    def add(self, request: Request) -> None:
        """Learn the prompt and the sampling of a request before its first step."""
        self._rows[request.request_id] = row_of(request)

    def remove(self, request_id: str) -> None:
        """Forget a request; unknown ids are ignored."""
        self._rows.pop(request_id, None)

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Compute `step`: flatten → forward → sample."""
        if not step.num_tokens:
            return StepResult()
        batch = flatten(step, self._rows, block_size=self._block_size, device=self._runtime.device)
        logits = self.forward(batch)
        return self._sample(logits, batch)

    def forward(self, batch: FlatBatch) -> Tensor:
        """Logits of the yielding rows: float32 [yielding rows, vocabulary]."""
        return self._decoder.forward(
            batch.token_ids,
            batch.attention.positions,
            self._kv_cache,
            batch.attention,
            self._runtime.kernels,
            logits_rows=batch.yield_at,
        )

    def _sample(self, logits: Tensor, batch: FlatBatch) -> StepResult:
        if not batch.yielding:
            return StepResult()
        tokens: dict[str, SampledToken] = {}
        failed: dict[str, str] = {}
        for row, token in zip(
            batch.yielding, self._sampler.sample(logits, batch.yielding), strict=True
        ):
            if token is None:
                failed[row.request.request_id] = "the model's logits are not finite numbers"
            else:
                row.tokens.append(token.token_id)
                tokens[row.request.request_id] = token
        return StepResult(tokens=tokens, failed=failed)
