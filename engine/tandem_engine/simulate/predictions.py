"""A replica's predictions, by the formulas of its metrics: of itself, or by a price list."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from tandem_engine.api.slo import Slo
from tandem_engine.async_engine.capacity_question import MeasuredCapacity
from tandem_engine.scheduler.latency.capacity import (
    ReplicaLimits,
    RequestShape,
    capacity,
    zero_load_tpot_s,
    zero_load_ttft_s,
)
from tandem_engine.scheduler.latency.step_model import Coefficients, StepPrices
from tandem_engine.simulate.machines import Machine
from tandem_engine.simulate.replica import Predictions
from tandem_engine.simulate.workload import Shape


def predict(
    prices: StepPrices,
    shape: RequestShape,
    limits: ReplicaLimits,
    slo: Slo,
    *,
    pace: float,
    measured: MeasuredCapacity | None = None,
) -> Predictions:
    """Return the values of the four series of predictions; `measured` is the capacity, if it is."""
    most = measured or capacity(prices, shape, limits, slo, pace=pace)
    return Predictions(
        most.requests_per_s,
        most.concurrency,
        zero_load_ttft_s(prices, shape, limits),
        zero_load_tpot_s(prices, shape),
    )


def prices_of(machine: Machine) -> StepPrices:
    """Return the model of step times that a replica learns in the end, without its noise."""
    coefficients = Coefficients(
        base=machine.base_s,
        token=machine.token_s,
        chunk_context=machine.attention_s,
        decode_context=machine.cache_s,
        row=machine.row_s,
    )
    return StepPrices(coefficients, round(machine.weights_s / machine.token_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPredictor:
    """Predicts for replicas that are flows: their requests have mean lengths only.

    Args:
        machine: The one that the replicas know the prices of.
        shapes: Lengths, and how they vary, of the requests that each mean stands for.
        limits: Of a replica.
        slo: The targets.
        pace: Share of the TPOT target that steps may take.
        measure: Returns the capacity for a mix of requests; None: it is computed.
    """

    machine: Machine
    shapes: Mapping[Shape, RequestShape]
    limits: ReplicaLimits
    slo: Slo
    pace: float = 0.95
    measure: Callable[[Mapping[Shape, float]], MeasuredCapacity] | None = None

    def __call__(self, arrived: Mapping[Shape, float]) -> Predictions | None:
        """Predict for requests of which so many arrived; None: there were none."""
        if not arrived:
            return None
        mixed = mix([(self.shapes[shape], count) for shape, count in arrived.items()])
        return predict(
            prices_of(self.machine),
            mixed,
            self.limits,
            self.slo,
            pace=self.pace,
            measured=self.measure and self.measure(arrived),
        )


def mix(shapes: list[tuple[RequestShape, float]]) -> RequestShape:
    """Return the mean of shapes by their numbers of requests, as a replica measures it."""
    total = sum(count for _, count in shapes)
    means = {
        field.name: sum(getattr(shape, field.name) * count for shape, count in shapes) / total
        for field in fields(RequestShape)
    }
    decodes = sum(shape.num_decodes * count for shape, count in shapes)
    if decodes:
        # The mean over decode rows: a long answer has many.
        read = sum(shape.context * shape.num_decodes * count for shape, count in shapes)
        means["context"] = read / decodes
    squares = sum(shape.spread * shape.prompt**2 * count for shape, count in shapes) / total
    means["spread"] = squares / means["prompt"] ** 2
    return RequestShape(**means)
