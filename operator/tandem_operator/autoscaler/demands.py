"""What the services of a namespace ask of its budget of NPUs; pure."""

from collections.abc import Iterable, Mapping

from tandem_operator.autoscale.budget import Demand, Grant, share
from tandem_operator.k8s.objects import NamespacedName


class Demands:
    """The last demand of each service. Outside mode Auto a service has what it has."""

    def __init__(self, budgets: Mapping[str, int]) -> None:
        """`budgets` are NPUs by namespace."""
        self._budgets = budgets
        self._known: dict[NamespacedName, Demand] = {}

    def put(self, key: NamespacedName, demand: Demand) -> None:
        """Keep the demand of a service."""
        if key.namespace in self._budgets:
            self._known[key] = demand

    def forget(self, key: NamespacedName) -> None:
        """Drop the demand of a service that is gone."""
        self._known.pop(key, None)

    def has_budget(self, namespace: str) -> bool:
        """Return True for a namespace whose NPUs are limited."""
        return namespace in self._budgets

    def unknown(self, keys: Iterable[NamespacedName]) -> list[NamespacedName]:
        """Return those of the services whose demand is not known yet."""
        return [key for key in keys if key not in self._known]

    def grant(self, key: NamespacedName, demand: Demand) -> Grant:
        """Return what a service with this demand may have; its namespace has a budget."""
        self._known[key] = demand
        peers = [one for other, one in self._known.items() if other.namespace == key.namespace]
        return share(self._budgets[key.namespace], peers).grants[key.name]
