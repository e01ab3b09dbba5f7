"""The local service of the docs' examples: its manifest, its state, and its last three steps."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, get_type_hints

import pytest
import yaml
from pydantic import TypeAdapter

from tandem_engine.api.steps import RowExplanation, StepExplanation, WaitExplanation
from tandem_engine.scheduler.reason import Reason
from tandem_serve.api.manifest import parse_manifest
from tandem_serve.api.spec import InferenceService
from tandem_serve.api.state import ReplicaState, ServiceState
from tandem_serve.api.steps import StepsReport
from tests.unit.docs.kinds import BlockKind, blocks_of
from tests.unit.docs.pages import Block
from tests.unit.serve.local_services import RECORD
from tests.unit.step_records import wait_of

_LEFT_OUT: Final = ", …"
_ADAPTER: Final = TypeAdapter(StepsReport)


def service(chunk: int) -> InferenceService:
    """Return a service that cuts prompts into chunks of so many tokens."""
    spec = {
        "model": {"source": "./"},
        "engine": {
            "schedule": {"templateType": "Mix", "splitFuse": {"splitChunkTokens": chunk}},
        },
    }
    return parse_manifest(yaml.safe_dump(document(spec)), folder=Path("/"))


def manifest(folder: Path, source: str, **spec: Any) -> Path:
    """Write a manifest with this source and further fields of the spec."""
    model = {"source": source, **spec.pop("model", {})}
    file = folder / "isvc.yaml"
    file.write_text(yaml.safe_dump(document({"model": model, **spec})))
    return file


def document(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "serving.tandem.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "tiny"},
        "spec": spec,
    }


def run_service(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `tandem status` find one service with one replica, whose logs are in `folder`."""
    replica = ReplicaState(replica_id="a", state="RUNNING", pid=None)
    state = ServiceState(
        status="RUNNING", failure=None, details="", target_replicas=1, replicas=(replica,)
    )
    record = replace(RECORD, run_dir=str(folder))
    monkeypatch.setattr("tandem_serve.commands.status.read_records", lambda: [record])
    monkeypatch.setattr("tandem_serve.commands.status.state_of", lambda _: state)


def documented_block() -> Block:
    """Return the example of `GET /debug/steps`."""
    return next(block for block in blocks_of(BlockKind.JSON) if '"blocked_by"' in block.text)


def documented_report() -> StepsReport:
    """Return the report of that example, with 0 for the fields that `…` leaves out."""
    found = json.loads(documented_block().text.replace(_LEFT_OUT, ""))
    parts = get_type_hints(StepsReport)
    for name in ("limits", "stats"):
        found[name] = _zeros(parts[name]) | found[name]
    return _ADAPTER.validate_python(found)


_ABSENT = {"tpot_pace", "drafts"}
"""Parts that are null where there is no target, and no speculation."""


def _zeros(part: Any) -> dict[str, int]:
    """Return 0 for each number of a part of the report that is always there."""
    return {field.name: 0 for field in fields(part) if field.name not in _ABSENT}


def _waits(sequence_id: str) -> WaitExplanation:
    return wait_of(sequence_id, Reason.TOKENS, token_budget=64)


def _chunk(sequence_id: str, start: int, end: int, known: int, hit: int = 0) -> RowExplanation:
    return RowExplanation(
        sequence_id=sequence_id,
        kind="chunk",
        num_tokens=end - start,
        start=start,
        num_known=known,
        num_hit=hit or None,
    )


def _before(newest: StepExplanation) -> tuple[StepExplanation, StepExplanation]:
    """Return the two steps before the newest one."""
    two_decodes = newest.rows[:2]
    full = replace(newest, num_decodes=2, num_decode_tokens=2, num_prefill_tokens=62)
    first = replace(
        full,
        number=newest.number - 2,
        rows=(*two_decodes, _chunk("r8", 62, 124, 126)),
        blocked_by=_waits("r9"),
        num_waiting=2,
    )
    second = replace(
        full,
        number=newest.number - 1,
        rows=(*two_decodes, _chunk("r8", 124, 126, 126), _chunk("r9", 16, 76, 100, hit=16)),
        blocked_by=_waits("r12"),
    )
    return first, second


def report() -> StepsReport:
    """Return the documented report with the two steps before its own."""
    found = documented_report()
    [newest] = found.steps
    return replace(found, steps=(*_before(newest), newest))
