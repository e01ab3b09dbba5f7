"""The operator's kinds as lightkube's client needs them: one registered class each."""

from functools import cache

from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource

from tandem_operator.k8s.kinds import Kind


@cache
def resource_of(kind: Kind) -> type[GenericNamespacedResource]:
    """Return the client's class for `kind`."""
    return create_namespaced_resource(kind.group, kind.version, kind.name, kind.plural)
