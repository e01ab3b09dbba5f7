"""Notes on defaults that may surprise a manifest's author, a sentence each; pure."""

from collections.abc import Iterator

from tandem_engine.api.rewrites import consequences, resolve_schedule
from tandem_serve.api.spec import InferenceServiceSpec


def notes(spec: InferenceServiceSpec) -> Iterator[str]:
    """Yield a sentence for each default that changes answers or latencies, and what is lifted."""
    yield from _chosen_by_slo(spec)
    yield from _surprising_defaults(spec)
    yield from _not_tested(spec)
    yield from _left_to_the_replica(spec)


def _chosen_by_slo(spec: InferenceServiceSpec) -> Iterator[str]:
    chosen = []
    if not _is_written(spec, "templateType"):
        chosen.append("templateType Mix")
    if not _is_written(spec, "splitFuse.splitStartBatchSize"):
        chosen.append("splitFuse.splitStartBatchSize 0 (every prompt is cut)")
    if not _is_written(spec, "maxIterTimes"):
        chosen.append(f"maxIterTimes {spec.model.max_seq_len or 'as maxSeqLen'}")
    if spec.slo.is_given and chosen:
        yield f"spec.slo sets these defaults of spec.engine.schedule: {', '.join(chosen)}"


def _surprising_defaults(spec: InferenceServiceSpec) -> Iterator[str]:
    """Yield the consequences of defaults; the author knows those of written values."""
    schedule = resolve_schedule(spec.schedule)
    for consequence in consequences(schedule, spec.slo, max_seq_len=spec.model.max_seq_len):
        if not _is_written(spec, consequence.field):
            advice = "or set spec.slo, which chooses it" if not spec.slo.is_given else ""
            text = "; ".join(filter(None, (consequence.text.rstrip("."), advice)))
            yield f"spec.engine.schedule.{text}"


def _not_tested(spec: InferenceServiceSpec) -> Iterator[str]:
    """Yield what unsafeCombinations allows here, as far as the manifest shows it."""
    engine = spec.engine
    if not (engine.stream_options.micro_batch and engine.unsafe_combinations):
        return
    lifted = []
    if engine.parallelism.num_tp == 1:
        lifted.append("tp 1, which leaves nothing to hide")
    if spec.model.quantization == "none":
        lifted.append("linear layers in float")
    if lifted:
        yield (
            "spec.engine.unsafeCombinations allows streamOptions.microBatch with "
            f"{' and '.join(lifted)}: that is not tested"
        )


def _left_to_the_replica(spec: InferenceServiceSpec) -> Iterator[str]:
    left = []
    if spec.model.max_seq_len is None:
        left.append("maxSeqLen, up to the model's limit")
    if not _is_written(spec, "maxBatchSize"):
        left.append(f"maxBatchSize, up to {spec.engine.schedule.max_batch_size}")
    if left:
        memory = f"spec.resources.memory {spec.resources.memory}"
        if spec.device != "cpu":
            memory = "its card's memory"
        yield (
            f"a replica chooses by {memory}: "
            f"{'; '.join(left)}. Its log, tandem status and GET /v1/models show the values"
        )


def _is_written(spec: InferenceServiceSpec, path: str) -> bool:
    """True when a field of the schedule, by its outside name, was given."""
    part, _, name = path.rpartition(".")
    schedule = spec.engine.schedule.model_dump(by_alias=True, exclude_unset=True)
    return name in (schedule.get(part, {}) if part else schedule)
