"""Our kinds as lightkube's client knows them: one class each, which its registry insists on."""

from functools import cache

from lightkube.generic_resource import GenericNamespacedResource, create_namespaced_resource

from tandem_operator.k8s.kinds import Kind


@cache
def resource_of(kind: Kind) -> type[GenericNamespacedResource]:
    """The class that stands for `kind` in calls of the client."""
    return create_namespaced_resource(kind.group, kind.version, kind.name, kind.plural)
