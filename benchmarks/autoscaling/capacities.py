"""The capacity of a flow's replica, as a replica with a scheduler would measure it."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from benchmarks.scheduling.policies import Policy
from tandem_engine.async_engine.capacity_question import (
    CapacityQuestion,
    MeasuredCapacity,
    RequestLengths,
)
from tandem_engine.simulate.capacity_search import NUM_REQUESTS, measure_capacity
from tandem_engine.simulate.machines import Machine
from tandem_engine.simulate.predictions import prices_of
from tandem_engine.simulate.workload import Shape

_PARTS: Final = 20
"""A mix is known to a twentieth: for each one is measured once."""


def measure(question: CapacityQuestion) -> MeasuredCapacity:
    """Answer a question as a replica's process does."""
    return measure_capacity(question, lambda: Random(0))  # noqa: S311  # load, not secrets


class MixedCapacities:
    """Measures mixes of requests.

    Args:
        shapes: Of each mean shape, the lengths of the requests that it stands for.
        policy: The replica's.
        machine: The replica's.
    """

    def __init__(
        self, shapes: Mapping[Shape, Sequence[Shape]], policy: Policy, machine: Machine
    ) -> None:
        self._shapes, self._policy, self._machine = shapes, policy, machine
        self._measured: dict[tuple[tuple[Shape, int], ...], MeasuredCapacity] = {}

    def __call__(self, arrived: Mapping[Shape, float]) -> MeasuredCapacity:
        """Return the capacity for requests of which so many arrived."""
        total = sum(arrived.values())
        mix = tuple((mean, max(1, round(_PARTS * each / total))) for mean, each in arrived.items())
        if mix not in self._measured:
            self._measured[mix] = measure(self._question(mix))
        return self._measured[mix]

    def _question(self, mix: Sequence[tuple[Shape, int]]) -> CapacityQuestion:
        rng = Random(0)  # noqa: S311  # load, not secrets
        parts = sum(part for _, part in mix)
        shapes = [
            rng.choice(self._shapes[mean])
            for mean, part in mix
            for _ in range(round(NUM_REQUESTS * part / parts))
        ]
        return CapacityQuestion(
            prices=prices_of(self._machine),
            requests=[RequestLengths(each.num_input, 0, each.num_output) for each in shapes],
            schedule=self._policy.schedule,
            slo=self._policy.slo,
            num_blocks=self._machine.num_blocks,
        )
