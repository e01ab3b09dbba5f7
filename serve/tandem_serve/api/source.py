"""Sources of checkpoints: folders of a machine or of a volume claim."""

import re
from typing import Annotated, Final
from urllib.parse import unquote

from pydantic import AfterValidator, field_validator

from tandem_engine.api.constraints import TextFormat
from tandem_engine.api.model import Model
from tandem_serve.api.pods import LONGEST_SUBDOMAIN, SUBDOMAIN

_FILE_URL: Final = "file://"
_CLAIM_URL: Final = rf"pvc://(?P<claim>{SUBDOMAIN})(?P<path>/.*)?"
_CLAIM: Final = TextFormat(
    prefix="pvc://",
    matches=(_CLAIM_URL, rf"(?s)pvc://[^/]{{1,{LONGEST_SUBDOMAIN}}}(/.*)?"),
    excludes=(r"(?s).*/\.\.(/.*)?",),
    problem="names no folder in a volume claim; write pvc://claim/path: the claim's name in "
    "lower-case letters, digits, '-' and '.', then a path without '..'",
    longest=4096,
)
CLAIMS_FOLDER: Final = "/mnt/claims"
"""Mount point of the volume claims of `pvc://` sources, each under its name."""


class Source(Model):
    """A checkpoint, by its folder."""

    source: Annotated[str, AfterValidator(_CLAIM)]
    """The checkpoint's folder: file:///absolute/path (on Kubernetes: on the node), pvc://claim/path
    in a volume claim, or, without Kubernetes, a path relative to the manifest that starts with ./
    or ../."""

    @field_validator("source")
    @classmethod
    def _is_source(cls, value: str) -> str:
        if "\0" in unquote(value):
            raise ValueError("has a NUL character, which no path has; leave it out")
        if value.startswith((f"{_FILE_URL}/", "pvc://", "./", "../")) or value in {".", ".."}:
            return value
        raise ValueError(_wrong_source(value))

    @property
    def path(self) -> str:
        """The checkpoint's folder as the replica sees it; a relative one starts at the manifest."""
        if claim := re.fullmatch(_CLAIM_URL, self.source):
            return f"{CLAIMS_FOLDER}/{claim['claim']}{(claim['path'] or '').rstrip('/')}"
        if self.source.startswith(_FILE_URL):
            return unquote(self.source.removeprefix(_FILE_URL))
        return self.source

    @property
    def claim(self) -> str | None:
        """The volume claim that holds the checkpoint; None: it is a folder of the machine."""
        claim = re.fullmatch(_CLAIM_URL, self.source)
        return claim["claim"] if claim else None


def _wrong_source(value: str) -> str:
    if value.startswith("/"):
        return f"'{value}' is a bare path; write {_FILE_URL}{value}"
    scheme, separator, _ = value.partition("://")
    if value.startswith("pvc:"):
        return _CLAIM.sentence(value)
    if separator:
        return (
            f"'{value}' has the scheme '{scheme}'; allowed: file:///absolute/path, "
            "pvc://claim/path, or a path that starts with ./ or ../; download the checkpoint and "
            "name its folder"
        )
    return (
        f"'{value}' is neither file:///absolute/path nor a path that starts with ./ or ../; "
        f"write ./{value} for a folder beside the manifest"
    )
