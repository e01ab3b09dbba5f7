"""The checkpoint's defaults hold where a request is silent, and nowhere else."""

from typing import Any

import pytest

from tandem_engine.api.request import SamplingParams
from tandem_engine.api.sampling_defaults import SamplingDefaults
from tandem_serve.testing import FakeEngine, client_of, fake_app

DEFAULTS = SamplingDefaults(
    temperature=0.6, top_p=0.9, top_k=50, min_p=0.1, repetition_penalty=1.1, max_tokens=7
)
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}


async def sampled(path: str, defaults: SamplingDefaults = DEFAULTS, **fields: Any) -> Any:
    """Return the parameters with which the engine was called."""
    engine = FakeEngine(sampling_defaults=defaults)
    async with client_of(fake_app(engine)) as client:
        answer = await client.post(path, json={"model": "tiny", **BODIES[path], **fields})
    assert answer.status_code == 200, answer.text
    return engine.submitted[0].sampling


@pytest.mark.parametrize("path", BODIES)
async def test_a_silent_request_has_the_checkpoints_parameters(path: str) -> None:
    assert await sampled(path, seed=1) == SamplingParams(**DEFAULTS.named(), seed=1)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("name", DEFAULTS.named())
async def test_null_is_silent_and_a_value_is_not(path: str, name: str) -> None:
    value = 1 if name in ("top_k", "max_tokens") else 0.5

    silent = await sampled(path, DEFAULTS, **{name: None})
    written = await sampled(path, DEFAULTS, **{name: value})

    assert getattr(silent, name) == DEFAULTS.named()[name]
    assert getattr(written, name) == value
    others = DEFAULTS.named().keys() - {name}
    assert {other: getattr(written, other) for other in others} == {
        other: DEFAULTS.named()[other] for other in others
    }


async def test_the_newer_name_of_max_tokens_is_a_value_too() -> None:
    sampling = await sampled("/v1/chat/completions", max_completion_tokens=3)

    assert sampling.max_tokens == 3


@pytest.mark.parametrize(("path", "room"), [("/v1/chat/completions", 109), ("/v1/completions", 16)])
async def test_without_defaults_nothing_changes(path: str, room: int) -> None:
    sampling = await sampled(path, SamplingDefaults())

    assert sampling == SamplingParams(max_tokens=room)


async def test_beams_take_no_defaults_of_drawing() -> None:
    sampling = await sampled("/v1/completions", use_beam_search=True, n=2)

    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1, 1, -1, 0)
    assert sampling.repetition_penalty == 1.1
