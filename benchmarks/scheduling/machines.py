"""The machine that an option names."""

from benchmarks.serving.errors import WrongUsage
from tandem_engine.simulate.machines import MACHINES, Machine


def find_machine(name: str) -> Machine:
    """Return the machine of that name.

    Raises:
        WrongUsage: there is none.
    """
    if name not in MACHINES:
        raise WrongUsage(f"--machine is '{name}'; it must be one of {', '.join(MACHINES)}.")
    return MACHINES[name]
