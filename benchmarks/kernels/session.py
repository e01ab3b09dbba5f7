"""One run of the benchmark."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from rich.console import Console

from benchmarks.kernels.cases import Case, cases_of
from benchmarks.kernels.measure import Limits, Stopwatch, measure_limits
from benchmarks.kernels.report import CaseTimes, kernel_table, show, step_table, write_json
from benchmarks.kernels.sampling import NUM_ROWS, VOCAB_SIZE, sampling_cases
from benchmarks.kernels.shapes import MODELS, Batch
from benchmarks.kernels.steps import StepTimes, measure_steps
from benchmarks.serving.errors import BenchmarkError, WrongUsage
from tandem_engine.api.errors import ConfigError
from tandem_engine.device.cpu.native.kernels import NativeKernels
from tandem_engine.device.cpu.native.library import load_library
from tandem_engine.device.cpu.threads.cores import ThreadPlan
from tandem_engine.device.cpu.threads.host_cores import read_host_cores
from tandem_engine.device.reference.kernels import ReferenceKernels

KERNEL_BATCHES: Final = [
    Batch.decode(1, 64),
    Batch.decode(1, 1024),
    Batch.decode(1, 4096),
    Batch.decode(16, 64),
    Batch.decode(16, 1024),
    Batch.decode(16, 4096),
    Batch.prompt(256),
    Batch.prompt(2048),
]
SAMPLED: Final = (VOCAB_SIZE, NUM_ROWS)
_WIDTH: Final = 132
STEP_BATCHES: Final = [Batch.decode(1, 64), Batch.decode(16, 64), Batch.prompt(2048)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The cases to measure; see the command line."""

    models: tuple[str, ...]
    variant: str
    threads: int | None
    seconds: float
    only: str
    kernels: bool
    steps: bool
    reference: bool


class Session:
    """Measures, shows and writes."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # Tables are whole also where there is no terminal, or a narrow one.
        self._console = Console(width=max(Console().width, _WIDTH))
        self._reference = ReferenceKernels()

    def run(self, out: Path | None) -> None:
        """Carry it out; exit with 1 where there are no kernels to measure."""
        settings = self._settings
        native = self._native()
        num_threads = settings.threads or read_host_cores().most_threads
        native.library.use_threads(ThreadPlan(num_threads=num_threads))
        torch.set_num_threads(num_threads)
        watch = Stopwatch(num_threads, settings.seconds)
        limits = measure_limits(watch, native)
        self._say(limits, native, watch)
        kernels = self._kernels(native, watch) if settings.kernels else []
        if kernels:
            show(self._console, kernel_table(kernels, limits))
        steps = self._steps(native, watch) if settings.steps else []
        if steps:
            show(self._console, step_table(steps, limits))
        if out is not None:
            write_json(out, kernels=kernels, steps=steps, limits=limits, settings=asdict(settings))

    def _native(self) -> NativeKernels:
        try:
            library = load_library(self._settings.variant)
        except ConfigError as error:
            raise WrongUsage(f"--variant: {error}") from None
        if library is None:
            raise BenchmarkError("There are no native kernels to measure.")
        return NativeKernels(library)

    def _say(self, limits: Limits, native: NativeKernels, watch: Stopwatch) -> None:
        time = "CPU time" if watch.num_threads == 1 else "wall time"
        self._console.print(
            f"Kernels {native.library.variant}, {watch.num_threads} threads, {time}; this machine "
            f"reads {limits.read_bytes_per_s / 1e9:.1f} GB/s and multiplies "
            f"{limits.gemm_per_s / 1e9:.0f} GFLOP/s in bfloat16.",
            highlight=False,
        )

    def _kernels(self, native: NativeKernels, watch: Stopwatch) -> list[CaseTimes]:
        results = []
        seen = set[tuple[str, str, str]]()
        for model, case in self._cases():
            key = (model, case.kernel, case.shape)
            if self._settings.only not in case.kernel or key in seen:
                continue
            seen.add(key)
            works = {"native": case.make(native)}
            if self._settings.reference:
                works["reference"] = case.make(self._reference)
            with torch.inference_mode():
                taken = watch.alternate(works, in_a_row=case.in_a_row)
            results.append(CaseTimes(model, case, taken["native"], taken.get("reference")))
        return results

    def _cases(self) -> Iterator[tuple[str, Case]]:
        for model in self._settings.models:
            for case in cases_of(MODELS[model], KERNEL_BATCHES):
                yield model, case
        for case in sampling_cases(*SAMPLED):
            yield "any", case

    def _steps(self, native: NativeKernels, watch: Stopwatch) -> list[StepTimes]:
        reference = self._reference if self._settings.reference else None
        return [
            step
            for model in self._settings.models
            for step in measure_steps(
                model,
                MODELS[model],
                STEP_BATCHES,
                watch=watch,
                native=native,
                reference=reference,
            )
        ]
