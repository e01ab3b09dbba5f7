"""A service without replicas: how Ray Serve takes it, and where requests to it are counted.

Serve refuses `num_replicas: 0`, and takes no replica at all from its own autoscaling alone. So the
document of a service at zero turns that on with a policy that never asks for one: the writer of
the document stays the only writer of the number.
"""

from typing import Any, Final

POLICY: Final = "tandem_serve.api.at_zero:no_replica"
"""Import path of the policy."""

AUTOSCALING_CONFIG: Final[dict[str, Any]] = {
    "min_replicas": 0,
    "initial_replicas": 0,
    # Serve refuses 0 here.
    "max_replicas": 1,
    "downscale_to_zero_delay_s": 0,
    "policy": {"policy_function": POLICY},
}
"""`autoscaling_config` of the deployment of a service at zero."""


DEMAND_BACKEND: Final = "tandem_demand"
"""Backend of the head's HAProxy whose requests ask for a replica."""

DEMAND_PATH: Final = "/v1/"
"""Begin of the paths that ask for a replica, by POST: those that give text."""

DEMAND_LIST: Final = "/v1/models"
"""Path that asks for a replica, by GET: pages list the models before their user asks a question."""


def no_replica(_context: object) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas, which is 0, and no state of the policy."""
    return 0, {}
