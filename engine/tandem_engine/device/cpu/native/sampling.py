"""Sampling as one call into the library: see sampling.h."""

import threading
from collections.abc import Sequence
from ctypes import addressof, byref
from typing import Any

import torch
from torch import Tensor

from tandem_engine.device.cpu.native.library import Library, SampledRowArgs, SamplingArgs
from tandem_engine.device.sampling import RowSamplingParams, RowState, Sampled


class NativeRowSampler:
    """Implements `sampling.RowSampler`; its workspaces are kept from step to step.

    Args:
        library: The kernels.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._workspaces = torch.empty(0)
        # Two threads may call at once, and the workspaces are shared.
        self._lock = threading.Lock()

    def prepare(self, rows: Sequence[RowSamplingParams]) -> "NativeStepSampling":
        """Convert the rows' parameters into the library's form."""
        return NativeStepSampling(self, rows)

    def sample(self, args: SamplingArgs) -> None:
        """Call the library; it writes to where `args` points."""
        with self._lock:
            num_workspaces = self._library.num_threads
            count = num_workspaces * self._library.sampling_workspace(args.vocab)
            if count > len(self._workspaces):
                # Written to at once, so that a measurement of the first step counts all of it.
                self._workspaces = torch.empty(count).fill_(0.0)
            args.workspaces, args.num_workspaces = self._workspaces.data_ptr(), num_workspaces
            self._library.sample(byref(args))


class NativeStepSampling:
    """Implements `sampling.StepSampling`.

    Args:
        sampler: The library and its workspaces.
        rows: How they are sampled.
    """

    def __init__(self, sampler: NativeRowSampler, rows: Sequence[RowSamplingParams]) -> None:
        self._sampler = sampler
        self._rows = rows  # its arrays are pointed at
        self._args = (SampledRowArgs * len(rows))(*map(_row_args, rows))
        self._max_top = max((row.num_logprobs or 0 for row in rows), default=0)

    def __call__(self, logits: Tensor, now: Sequence[RowState]) -> Sampled:
        """One token a row."""
        logits = logits.contiguous()
        rows, vocab = logits.shape
        if rows != len(self._args):  # the library reads as many
            raise ValueError(f"there are logits of {rows} rows, not of {len(self._args)}")
        max_top = min(self._max_top, vocab)
        for args, of_row in zip(self._args, now, strict=True):
            args.position = of_row.position
            if of_row.seen is not None:
                _point(args, "seen", "num_seen", of_row.seen)
                _point(args, "counts", None, of_row.counts)
            if of_row.banned is not None or args.num_banned:
                _point(args, "banned", "num_banned", of_row.banned)
        sampled = Sampled(
            torch.empty(rows, dtype=torch.int64),
            torch.empty(rows),
            torch.empty(rows, max_top, dtype=torch.int64),
            torch.empty(rows, max_top),
        )
        self._sampler.sample(
            SamplingArgs(
                logits=logits.data_ptr(),
                sampled_rows=addressof(self._args),
                rows=rows,
                vocab=vocab,
                tokens=sampled.token_ids.data_ptr(),
                logprobs=sampled.logprobs.data_ptr(),
                max_top=max_top,
                top_ids=sampled.top_ids.data_ptr(),
                top_logprobs=sampled.top_logprobs.data_ptr(),
            )
        )
        return sampled


def _row_args(row: RowSamplingParams) -> SampledRowArgs:
    args = SampledRowArgs(
        temperature=row.temperature,
        margin=row.margin,
        top_p=row.top_p,
        top_k=row.top_k,
        seed=row.seed,
        num_logprobs=-1 if row.num_logprobs is None else row.num_logprobs,
        repetition=row.repetition_penalty,
        frequency=row.frequency_penalty,
        presence=row.presence_penalty,
    )
    _point(args, "biased", "num_biased", row.biased)
    _point(args, "biases", None, row.biases)
    return args


def _point(args: SampledRowArgs, name: str, count: str | None, array: Any) -> None:
    """Point a row's arguments at an array, or at none."""
    length = 0 if array is None else len(array)
    # `array.ctypes` makes an object that takes three times as long.
    setattr(args, name, array.__array_interface__["data"][0] if length else None)
    if count is not None:
        setattr(args, count, length)
