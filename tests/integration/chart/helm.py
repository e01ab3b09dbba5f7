"""The real helm, as the tests call it."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[3]
CHART: Final = ROOT / "charts/tandem"
VALUES: Final = sorted((CHART / "ci").glob("*-values.yaml"))
_IMAGES: Final = CHART / "ci/default-values.yaml"
# Python's own takes ten times as long for the CRD, twice that of helm.
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]


class HelmFailed(Exception):
    """Helm ended with an error; the text is what it said."""


@dataclass(frozen=True)
class Helm:
    """Helm for one cluster, or for none."""

    binary: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(self, *args: str, values: Sequence[Path | Mapping[str, Any]] = ()) -> str:
        """Run helm and return its output; `values` are files, or JSON objects."""
        done = subprocess.run(
            [self.binary, *args, *_flags(values)],
            env=self.env,
            input=_piped(values),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise HelmFailed(done.stdout + done.stderr)
        return done.stdout

    def template(
        self, *args: str, values: Sequence[Path | Mapping[str, Any]] = (), namespace: str = "sys"
    ) -> list[Object]:
        """The objects of a release called tandem; `values` need not name the images."""
        text = self.run(
            *("template", "tandem", str(CHART), "--namespace", namespace, *args),
            values=[_IMAGES, *values],
        )
        return objects_of(text)


def objects_of(text: str) -> list[Object]:
    """The objects that helm has written."""
    return [each for each in yaml.load_all(text, Loader=_Loader) if each]


def _flags(values: Sequence[Path | Mapping[str, Any]]) -> list[str]:
    # Helm reads the one object from its standard input.
    return [
        flag
        for value in values
        for flag in ("--values", str(value) if isinstance(value, Path) else "-")
    ]


def _piped(values: Sequence[Path | Mapping[str, Any]]) -> str | None:
    objects = [value for value in values if not isinstance(value, Path)]
    assert len(objects) <= 1
    return json.dumps(objects[0]) if objects else None


def only(objects: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """The one object of this kind."""
    found = [
        one for one in objects if one["kind"] == kind and name in (None, one["metadata"]["name"])
    ]
    assert len(found) == 1, [one["metadata"]["name"] for one in found]
    return found[0]
