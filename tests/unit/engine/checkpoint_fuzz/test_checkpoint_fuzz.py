"""Whatever a checkpoint's files hold: a model that runs, or one sentence that names the file."""

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tandem_engine.api.config import EngineConfig
from tandem_engine.api.errors import CheckpointError, EngineError
from tandem_engine.build import build_engine
from tests.figures import Figures
from tests.unit.engine.checkpoint_fuzz.damage import damaged
from tests.unit.engine.checkpoint_fuzz.sound import Draft, sound

SAMPLES, ALL = 60, 2000
LONGEST = 2000
SECTION = "fuzzing of checkpoints"
DETERMINISTIC = settings(
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    # The case that failed says enough; making it smaller would take as long as all of them.
    phases=[Phase.generate],
)


def start(draft: Draft, folder: Path) -> str | None:
    """Start an engine on the checkpoint, as a replica does; what it refuses it with, or None."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    draft.write(folder)
    config = EngineConfig(
        model_path=str(folder), num_kv_blocks=8, memory_bytes=1 << 30, num_threads=1
    )
    try:
        engine = build_engine(config, report=lambda _: None)
    except EngineError as error:
        said = str(error)
        if isinstance(error, CheckpointError):
            assert str(folder) in said, f"no file is named: {said}"
        assert said.isprintable(), said
        assert len(said) <= LONGEST, said
        return said
    asyncio.run(engine.stop())
    return None


@settings(DETERMINISTIC, max_examples=30)
@given(draft=sound())
def test_what_the_damages_are_done_to_is_sound(
    draft: Draft, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert start(draft, tmp_path_factory.getbasetemp() / "sound") is None


@pytest.mark.parametrize("count", [SAMPLES, pytest.param(ALL, marks=pytest.mark.slow)], ids=str)
def test_a_damaged_checkpoint_runs_or_is_refused_with_one_sentence(
    count: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    outcomes: Counter[str] = Counter()

    @settings(DETERMINISTIC, max_examples=count)
    @given(draft=sound().flatmap(damaged))
    def load(draft: Draft) -> None:
        refusal = start(draft, tmp_path / "model")
        outcomes["runs" if refusal is None else "is refused"] += 1

    load()

    Figures.of(request.config).say(
        SECTION,
        f"{outcomes.total()} checkpoints: {outcomes['runs']} run all the same, "
        f"{outcomes['is refused']} are refused with a sentence",
    )
    assert outcomes["runs"] > count / 50, "some damages do not matter"
    assert outcomes["is refused"] > count / 2, "most do"
