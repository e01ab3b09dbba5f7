"""Owners of the number of replicas: kubectl scale, an HPA and GitOps in each mode; hand-overs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem_operator.scaling_law.decision import Decision, DecisionReason
from tandem_operator.scaling_law.mode import (
    StatusScaling,
    desired_replicas,
    next_status,
    replicas_to_write,
)
from tandem_serve.api.scaling import ScalingMode, ScalingSpec

MODES: Final[tuple[ScalingMode, ...]] = get_args(ScalingMode)
BY_HAND: Final[tuple[ScalingMode, ...]] = ("Manual", "Recommend", "External")


@dataclass
class Service:
    """A service as the API server has it, with an operator beside it."""

    spec: ScalingSpec = field(default_factory=lambda: ScalingSpec(max_replicas=8))
    status: StatusScaling = field(default_factory=StatusScaling)

    def __post_init__(self) -> None:
        self.reconcile()

    @property
    def replicas(self) -> int:
        return desired_replicas(self.spec, self.status)

    def reconcile(self, decided: int | None = None) -> None:
        decision = None
        if decided is not None:
            reason = DecisionReason.PREDICTED_OVERLOAD
            decision = Decision(desired=decided, reason=reason, recommended=decided)
        self.status = next_status(self.spec, self.status, decision)
        number = replicas_to_write(self.spec, self.status)
        if number is not None:
            self.scale(number)

    def scale(self, replicas: int) -> None:
        """Do as `kubectl scale` and an HPA do: the API server writes only what differs."""
        if self.spec.replicas != replicas:
            self.spec = self.spec.model_copy(update={"replicas": replicas})
            self.reconcile()

    def switch(self, mode: ScalingMode) -> None:
        self.spec = self.spec.model_copy(update={"mode": mode})
        self.reconcile()

    def apply(self, **fields: object) -> None:
        """Apply a file with these fields; others stay as other writers left them."""
        self.spec = self.spec.model_copy(update=fields)
        self.reconcile()


def service(mode: ScalingMode, **fields: object) -> Service:
    return Service(ScalingSpec(mode=mode, max_replicas=8, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", BY_HAND)
def test_kubectl_scale_and_an_hpa_set_the_number_where_people_own_it(mode: ScalingMode) -> None:
    one = service(mode)
    one.scale(5)

    assert one.replicas == one.status.desired_replicas == 5


def test_in_mode_auto_they_change_nothing() -> None:
    one = service("Auto")
    one.reconcile(decided=4)
    one.scale(7)

    assert one.replicas == 4
    assert one.status.superseded_replicas == 7


@pytest.mark.parametrize("mode", MODES)
def test_applying_the_same_file_again_moves_nothing(mode: ScalingMode) -> None:
    one = service(mode)
    one.scale(3)
    one.reconcile(decided=6 if mode == "Auto" else None)
    before = one.replicas
    one.apply(mode=mode, min_replicas=1, max_replicas=8)

    assert one.replicas == before == (6 if mode == "Auto" else 3)


@pytest.mark.parametrize("mode", BY_HAND)
def test_a_file_with_a_number_takes_a_scaled_service_back_to_it(mode: ScalingMode) -> None:
    one = service(mode, replicas=3)
    one.scale(5)
    one.apply(replicas=3)

    assert one.replicas == 3


def test_a_file_with_a_number_does_not_disturb_mode_auto() -> None:
    one = service("Auto", replicas=3)
    assert one.replicas == 3
    one.reconcile(decided=6)
    one.apply(replicas=3)

    assert one.replicas == 6


@pytest.mark.parametrize("before", MODES)
@pytest.mark.parametrize("after", MODES)
@pytest.mark.parametrize("scaled", [None, 2, 5])
def test_a_change_of_the_mode_is_no_change_of_the_number(
    before: ScalingMode, after: ScalingMode, scaled: int | None
) -> None:
    one = service(before)
    if scaled is not None:
        one.scale(scaled)
    one.reconcile(decided=6)
    in_force = one.replicas
    one.switch(after)

    assert one.replicas == one.status.desired_replicas == in_force
    one.reconcile()
    assert one.replicas == in_force


def test_leaving_auto_does_not_bring_back_the_number_from_before_it() -> None:
    one = service("Manual", replicas=2)
    one.switch("Auto")
    one.reconcile(decided=7)
    one.switch("Manual")

    assert one.replicas == one.spec.replicas == 7


@pytest.mark.parametrize("mode", BY_HAND)
def test_after_auto_any_number_can_be_asked_for_even_the_one_from_before_it(
    mode: ScalingMode,
) -> None:
    """An HPA reads its own number in the scale subresource, and writes only what differs."""
    one = service(mode)
    one.scale(2)
    one.switch("Auto")
    one.reconcile(decided=7)
    one.switch(mode)
    one.scale(2)

    assert one.replicas == 2


def test_before_the_written_number_is_there_the_one_in_force_stays() -> None:
    status = StatusScaling(desired_replicas=7, superseded_replicas=2)
    spec = ScalingSpec(mode="External", replicas=2, max_replicas=8)

    assert desired_replicas(spec, status) == 7
    assert replicas_to_write(spec, status) == 7
    assert next_status(spec, status).superseded_replicas == 2


def test_a_new_number_and_another_mode_in_one_file_are_both_followed() -> None:
    one = service("Auto", replicas=2)
    one.reconcile(decided=7)
    one.apply(mode="Manual", replicas=4)

    assert one.replicas == 4


def test_mode_recommend_writes_down_what_auto_would_do() -> None:
    one = service("Recommend")
    one.reconcile(decided=6)

    assert one.replicas == 1
    assert one.status.recommended_replicas == 6


@pytest.mark.parametrize(
    ("spec", "status", "replicas"),
    [
        (ScalingSpec(), StatusScaling(), 1),
        (ScalingSpec(min_replicas=3), StatusScaling(), 3),
        (ScalingSpec(mode="Auto", replicas=4, max_replicas=8), StatusScaling(), 4),
        (ScalingSpec(replicas=9, max_replicas=8), StatusScaling(), 8),
        (ScalingSpec(replicas=1, min_replicas=2), StatusScaling(), 2),
        (ScalingSpec(max_replicas=5), StatusScaling(mode="Auto", desired_replicas=7), 5),
        (ScalingSpec(max_replicas=5), StatusScaling(mode="Manual", desired_replicas=3), 1),
    ],
)
def test_the_number_at_first_and_within_bounds(
    spec: ScalingSpec, status: StatusScaling, replicas: int
) -> None:
    assert desired_replicas(spec, status) == replicas


def test_without_a_number_minreplicas_is_followed_up_and_down() -> None:
    one = service("Manual")
    for number in (3, 1, 2):
        one.apply(min_replicas=number)

        assert one.replicas == number


@pytest.mark.parametrize("mode", ["Manual", "Recommend", "External"])
def test_a_hand_over_that_is_cut_short_is_ended_later(mode: ScalingMode) -> None:
    """The operator may be killed between the status and the scale subresource."""
    one = service("Auto")
    one.reconcile(decided=6)
    one.spec = one.spec.model_copy(update={"mode": mode})
    one.status = next_status(one.spec, one.status)

    assert one.replicas == 6
    one.reconcile()
    assert (one.replicas, one.spec.replicas, one.status.mode) == (6, 6, mode)


def test_a_status_is_read_as_it_was_written() -> None:
    status = StatusScaling(mode="Auto", desired_replicas=3, superseded_replicas=2)

    assert StatusScaling.read({"scaling": status.document()}) == status
    assert StatusScaling.read({}) == StatusScaling()


STEPS = st.one_of(
    st.tuples(st.just("scale"), st.integers(1, 8)),
    st.tuples(st.just("decide"), st.integers(1, 8)),
    st.tuples(st.just("switch"), st.sampled_from(MODES)),
)


@given(st.lists(STEPS, max_size=20))
def test_only_the_owner_moves_the_number(steps: list[tuple[str, object]]) -> None:
    one = service("Manual")
    actions: dict[str, Callable[..., None]] = {
        "scale": one.scale,
        "decide": one.reconcile,
        "switch": one.switch,
    }
    for name, argument in steps:
        before, mode = one.replicas, one.spec.mode
        actions[name](argument)
        owner = "decide" if mode == "Auto" else "scale"

        assert one.replicas == (argument if name == owner else before)
        assert one.status.desired_replicas == one.replicas
