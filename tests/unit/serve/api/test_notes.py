"""Notes on the defaults that a manifest leaves in force."""

from typing import Any

from tandem_serve.api.notes import notes
from tandem_serve.api.spec import InferenceServiceSpec

TARGET = {"tpot": {"target": "50ms"}}


def said(**spec: Any) -> list[str]:
    return list(notes(InferenceServiceSpec.model_validate({"model": {"source": "./m"}} | spec)))


def schedule(**fields: Any) -> dict[str, Any]:
    return {"schedule": {"maxBatchSize": 8, **fields}}


SIZED = {"source": "./m", "maxSeqLen": 2048}


def test_prompts_that_are_not_cut_and_answers_that_are_get_a_note_each() -> None:
    output, prompts = said(model=SIZED, engine=schedule(templateType="Mix"))

    assert output.startswith("spec.engine.schedule.maxIterTimes is 512: every answer ends after")
    assert prompts == (
        "spec.engine.schedule.splitFuse.splitStartBatchSize is 8: with fewer sequences in the "
        "batch prompts are not cut, and all requests wait for one of up to maxPrefillTokens 8192; "
        "lower it to 0 to cut all of them; or set spec.slo, which chooses it"
    )


def test_no_note_repeats_a_written_value() -> None:
    written = schedule(templateType="Mix", maxIterTimes=512, splitFuse={"splitStartBatchSize": 4})

    assert said(model=SIZED, engine=written) == []


def test_an_answer_that_the_context_ends_first_is_not_cut() -> None:
    model = {"source": "./m", "maxSeqLen": 512}

    assert said(model=model, engine=schedule()) == []


def test_a_note_lists_the_values_that_a_target_chooses() -> None:
    assert said(model=SIZED, engine=schedule(), slo=TARGET) == [
        "spec.slo sets these defaults of spec.engine.schedule: templateType Mix, "
        "splitFuse.splitStartBatchSize 0 (every prompt is cut), maxIterTimes 2048"
    ]
    unsized, _ = said(engine=schedule(templateType="Mix"), slo=TARGET)
    assert unsized.endswith(
        "spec.engine.schedule: splitFuse.splitStartBatchSize 0 (every prompt is cut), "
        "maxIterTimes as maxSeqLen"
    )


def test_what_memory_decides_is_named() -> None:
    (both,) = said(engine={"schedule": {"maxIterTimes": 512}})
    (length,) = said(engine=schedule(maxIterTimes=512))

    assert both.startswith("a replica chooses by spec.resources.memory 4Gi: maxSeqLen, up")
    assert "maxBatchSize, up to 200" in both
    assert "maxBatchSize" not in length


def test_what_is_lifted_is_told() -> None:
    written = schedule(templateType="Mix", maxIterTimes=512, splitFuse={"splitStartBatchSize": 0})
    written |= {"streamOptions": {"microBatch": True}, "unsafeCombinations": True}
    tested = written | {"parallelism": {"tp": 2}}
    two = {"cpu": 2, "memory": "4Gi"}

    (note,) = said(model=SIZED | {"quantization": "none"}, engine=written)
    assert note == (
        "spec.engine.unsafeCombinations allows streamOptions.microBatch with tp 1, which leaves "
        "nothing to hide and linear layers in float: that is not tested"
    )
    assert said(model=SIZED, engine=tested, resources=two) == []
