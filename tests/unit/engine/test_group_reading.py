"""What a group of cards has computed is told when it was read and no rank has failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from tandem_engine.api.errors import ReplicaLost
from tandem_engine.api.step import Step
from tandem_engine.device.host_memory import HostInts
from tandem_engine.runner.batch import NO_DRAFTS, FlatBatch
from tandem_engine.runner.group_executor import GroupExecutor, RankLost
from tandem_engine.runner.peer_process import PeerLost
from tandem_engine.runner.step_handle import ModelStepHandle
from tandem_engine.sampling.row import Row
from tandem_engine.sampling.step_tokens import NO_LOGPROBS, StepTokens
from tests.unit.engine.parallel.ranks import layout
from tests.unit.engine.test_sampling import row

LOST = PeerLost("Rank 1 has ended.")


def group(*, on_cards: bool = True, check: Any = None) -> tuple[GroupExecutor, Mock]:
    """A group, and what makes its ranks give up."""
    abort = Mock()
    executor = GroupExecutor(
        Mock(),
        publish=Mock(),
        abort=abort,
        check=check or Mock(),
        expect=Mock(),
        exits=lambda: "Rank 1 was ended by SIGKILL.",
        broadcast=Mock() if on_cards else None,
    )
    return executor, abort


def test_a_fault_that_shows_when_tokens_are_read_is_the_end_of_the_group() -> None:
    executor, abort = group(check=Mock(side_effect=LOST))

    cause = r"Rank 1 has ended\. Rank 1 was ended by SIGKILL\."
    with pytest.raises(RankLost, match=cause), executor.reading():
        pass

    abort.assert_called_once_with("Rank 1 has ended.")
    with pytest.raises(RankLost):
        executor.copy(Step())


def test_it_is_why_reading_has_failed() -> None:
    executor, _ = group(check=Mock(side_effect=LOST))

    with pytest.raises(RankLost), executor.reading():
        raise RuntimeError("the device has lost its context")


def test_an_error_of_a_step_alone_is_not() -> None:
    executor, abort = group()

    with pytest.raises(ValueError, match="no such token"), executor.reading():
        raise ValueError("no such token")

    abort.assert_not_called()
    with executor.reading():
        pass


def test_on_a_host_logits_are_checked_before_they_are_sampled_and_not_again() -> None:
    executor, _ = group(on_cards=False, check=Mock(side_effect=LOST))

    with executor.reading():
        pass


def handle_of(row: Row, *, reading: Any) -> ModelStepHandle:
    batch = FlatBatch(
        token_ids=torch.tensor([1]),
        attention=layout([(1, 0, (0,))]),
        yield_at=HostInts.of([0], "cpu"),
        yielding=[row],
        drafts=NO_DRAFTS,
    )
    handle = ModelStepHandle(
        Step(sequence_ids=[row.sequence_id]), batch, None, Mock(), reading=reading
    )
    handle.has_copied = True
    handle.compute(lambda step: step.set_tokens(StepTokens(torch.tensor([5]), NO_LOGPROBS)))
    return handle


def test_tokens_of_a_step_that_a_rank_has_not_computed_are_not_told() -> None:
    @contextmanager
    def lost() -> Iterator[None]:
        yield
        raise ReplicaLost("Rank 1 has ended.")

    of_row = row()
    handle = handle_of(of_row, reading=lost)

    with pytest.raises(ReplicaLost):
        handle.result()
    assert not of_row.output


def test_they_are_told_when_they_were_read() -> None:
    seen: list[str] = []

    @contextmanager
    def reading() -> Iterator[None]:
        seen.append("begins")
        yield
        seen.append("ends")

    of_row = row()

    assert handle_of(of_row, reading=reading).result().tokens[of_row.sequence_id] == ((5, None),)
    assert seen == ["begins", "ends"]
    assert of_row.output == [5]
