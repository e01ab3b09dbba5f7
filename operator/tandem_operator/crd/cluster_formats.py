"""Formats that only Kubernetes asks for: the CRD holds them in CEL, and the parser calls them."""

from typing import Final

from tandem_engine.api.constraints import TextFormat
from tandem_operator.k8s.names import MAX_NAME_LENGTH

# In a URL either may be written as its number.
_SLASH: Final = "(/|%2[fF])"
_POINT: Final = r"(\.|%2[eE])"
_WAY_OUT: Final = "file:///absolute/path for a folder of the node, or pvc://claim/path"

SERVICE_NAME: Final = TextFormat(
    matches=(f"[a-z]([-a-z0-9]{{0,{MAX_NAME_LENGTH - 2}}}[a-z0-9])?",),
    problem=f"cannot name a service on Kubernetes, where KubeRay adds endings to it; use up to "
    f"{MAX_NAME_LENGTH} lower-case letters, digits and '-', a letter first and no '-' last",
)
SOURCE_FIELDS: Final = ("spec.model.source", "spec.engine.speculation.draft.source")
SOURCES: Final = (
    TextFormat(
        excludes=("(?s)/.*",),
        problem="is a bare path; write file://%s for a folder of the node, or pvc://claim/path",
    ),
    TextFormat(
        excludes=(r"(?s)\.\.?(/.*)?",),
        problem="is relative to a manifest, whose folder Kubernetes does not know; "
        f"write {_WAY_OUT}",
    ),
    TextFormat(
        matches=(r"(?s)((file:///|pvc://|/).*|\.\.?(/.*)?)",),
        problem=f"is not a source that Kubernetes can mount; write {_WAY_OUT}",
    ),
    TextFormat(
        excludes=(
            f"file:///{_SLASH}*",
            f"(?s)file:///(.*{_SLASH})?{_POINT}{{2}}({_SLASH}.*)?",
        ),
        problem="names no folder of the node; write file:///absolute/path, without '..'",
    ),
)
