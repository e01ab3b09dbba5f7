"""Controllers by name, some with a parameter: `keda=2` is `keda` with its threshold at 2.

The modules of MODULES are imported, and register their own:

    @register("name")
    def make(settings: ControllerSettings) -> Controller: ...
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import ceil, inf
from typing import Final

from benchmarks.serving.errors import WrongUsage
from tandem_engine.simulate.fleet import Controller
from tandem_engine.simulate.load_profile import LoadProfile
from tandem_engine.simulate.observation import FleetObservation, Target
from tandem_engine.simulate.workload import Shape

MODULES: Final = ("benchmarks.autoscaling.autoscalers",)
_LOOK_AHEAD_S: Final = 1.0
_MOST_LOAD: Final = 0.9
"""Share of a replica's capacity that the oracle uses by default."""
_MOST_NUMBERS: Final = 24
"""Fixed numbers that `--tune` tries at most; of a large fleet not each one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """What a controller may know before the load begins."""

    ttft: Target
    tpot: Target
    min_replicas: int
    max_replicas: int
    period_s: float
    window_s: float
    cold_start_s: float
    """Mean time of a start."""
    capacity: Callable[[Shape], float]
    """Requests a second of a shape that one replica can take within the targets."""
    load: LoadProfile
    """The load that comes; only the oracle reads it."""
    value: float | None = None
    """Of the controller's parameter; None: its default."""


MakeController = Callable[[ControllerSettings], Controller]
Grid = Callable[[int], Sequence[float]]
"""Returns the values of a parameter that `--tune` tries, for a highest number of replicas."""


@dataclass(frozen=True, slots=True)
class _Family:
    make: MakeController
    grid: Grid | None
    below: float
    """That its parameter stays below."""
    reads_capacity: bool


_CONTROLLERS: Final[dict[str, _Family]] = {}


def register(
    name: str,
    grid: Sequence[float] | Grid = (),
    *,
    below: float = inf,
    reads_capacity: bool = True,
) -> Callable[[MakeController], MakeController]:
    """Return a decorator that makes a controller known by `name`.

    Args:
        name: Without `=`.
        grid: Values of its parameter that `--tune` tries; empty: it has none.
        below: That its parameter must stay below.
        reads_capacity: False for one that is not told what replicas can take: then they need not
            measure it, which takes most of the time.
    """

    def add(make: MakeController) -> MakeController:
        values = grid if callable(grid) else ((lambda _: grid) if grid else None)
        _CONTROLLERS[name] = _Family(make, values, below, reads_capacity)
        return make

    return add


def controller_names() -> list[str]:
    """Return the names of all controllers, without parameters."""
    for module in MODULES:
        import_module(module)
    return list(_CONTROLLERS)


def tuned_names(name: str, max_replicas: int) -> list[str]:
    """Return a controller's name with each value of its grid."""
    controller_names()
    family = _CONTROLLERS.get(name)
    if family is None or family.grid is None:
        return []
    return [f"{name}={value:g}" for value in family.grid(max_replicas)]


def check_name(name: str) -> float | None:
    """Return the value of the parameter in a name; None: there is none.

    Raises:
        WrongUsage: there is no controller of that name, or it has no such parameter.
    """
    names = controller_names()
    base, has_value, text = name.partition("=")
    if base not in _CONTROLLERS:
        raise WrongUsage(f"--controller is '{name}'; it must be one of {', '.join(names)}.")
    if not has_value:
        return None
    family = _CONTROLLERS[base]
    if family.grid is None:
        raise WrongUsage(f"--controller is '{name}'; {base} has no parameter.")
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < family.below:
        most = "" if family.below == inf else f" and below {family.below:g}"
        raise WrongUsage(f"--controller is '{name}'; its parameter must be a number above 0{most}.")
    return value


def make_controller(name: str, settings: ControllerSettings) -> Controller:
    """Make a controller.

    Raises:
        WrongUsage: there is none of that name, or it has no such parameter.
    """
    value = check_name(name)
    return _CONTROLLERS[name.partition("=")[0]].make(replace(settings, value=value))


def reads_capacity(name: str) -> bool:
    """Return True for a controller that decides by what replicas can take."""
    check_name(name)
    return _CONTROLLERS[name.partition("=")[0]].reads_capacity


class FixedReplicas:
    """Always as many.

    Args:
        count: Replicas.
    """

    def __init__(self, count: int) -> None:
        self._count = count

    def desired(self, observation: FleetObservation, now: float) -> int:  # noqa: ARG002
        """Return the number."""
        return self._count


class Oracle:
    """Knows the load that comes: as many replicas as it needs by the end of a cold start.

    Not a law to be used: the fewest replica-hours with which the targets can about be kept.

    Args:
        settings: With the load.
        most_load: Share of its capacity that a replica is given; lower ones keep the targets of
            more requests.
    """

    def __init__(self, settings: ControllerSettings, most_load: float = _MOST_LOAD) -> None:
        self._settings = settings
        self._most_load = most_load
        self._streams = [
            (stream.rate, settings.capacity(stream.mean_shape)) for stream in settings.load.streams
        ]

    def desired(self, observation: FleetObservation, now: float) -> int:  # noqa: ARG002
        """Return the number for the highest load until a replica of the next period is ready."""
        settings = self._settings
        until = now + settings.cold_start_s + 2.0 * settings.period_s
        most, at = 0.0, now
        while at <= until:
            most = max(most, self._replicas(at))
            at += _LOOK_AHEAD_S
        return ceil(most / self._most_load)

    def _replicas(self, at: float) -> float:
        return sum(rate(at) / capacity for rate, capacity in self._streams)


def initial_replicas(name: str, max_replicas: int) -> int | None:
    """Return the replicas that a controller begins with, whatever the load; None: as it needs."""
    base, _, value = name.partition("=")
    return ceil(float(value or max_replicas)) if base == "fixed" else None


def _numbers(max_replicas: int) -> Sequence[float]:
    """Return each number of replicas; of many, evenly spaced ones up to the highest."""
    count = min(max_replicas, _MOST_NUMBERS)
    return [ceil(max_replicas * number / count) for number in range(1, count + 1)]


@register("fixed", _numbers, reads_capacity=False)
def _fixed(settings: ControllerSettings) -> Controller:
    return FixedReplicas(ceil(settings.value or settings.max_replicas))


@register("oracle", (0.6, 0.7, 0.8, 1.0, 1.1, 1.2, 1.4), reads_capacity=False)
def _oracle(settings: ControllerSettings) -> Controller:
    return Oracle(settings, settings.value or _MOST_LOAD)
