"""Write what `settings` may hold into the schema of the chart's values.

python -m tools.values_schema

The rest of charts/tandem/values.schema.json is written by hand.
"""

import json
from pathlib import Path
from typing import Any, Final

from tandem_operator.render.settings import OperatorSettings

SCHEMA: Final = Path(__file__).parents[1] / "charts/tandem/values.schema.json"
# The chart's templates ask for these, in one sentence that says what to write.
_FILLED: Final = {"OperatorSettings": "replica", "ReplicaDefaults": "image"}


def main() -> None:
    """Rewrite the file."""
    text = SCHEMA.read_text(encoding="utf-8")
    SCHEMA.write_text(with_settings(text), encoding="utf-8")


def with_settings(text: str) -> str:
    """The schema `text` with `settings` as the operator's settings have it now."""
    schema = json.loads(text)
    definitions = _definitions()
    schema["properties"]["settings"] = {"$ref": "#/definitions/OperatorSettings"}
    schema["definitions"] = definitions
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _definitions() -> dict[str, Any]:
    # Draft 7, which every helm reads, keeps its parts under `definitions`.
    whole = OperatorSettings.model_json_schema(by_alias=True, ref_template="#/definitions/{model}")
    definitions: dict[str, Any] = whole.pop("$defs")
    definitions["OperatorSettings"] = whole
    # The chart's own `namespaces`, which the roles follow, too, is the one place to name them.
    del whole["properties"]["namespaces"]
    for model, name in _FILLED.items():
        required = [field for field in definitions[model].get("required", []) if field != name]
        definitions[model].pop("required", None)
        if required:
            definitions[model]["required"] = required
    return {name: _plain(definitions[name]) for name in sorted(definitions)}


def _plain(schema: Any) -> Any:
    """The schema without titles, which repeat the names, and without defaults."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in {"title", "default"}}
    if "properties" in kept:
        kept["properties"] = {name: _plain(value) for name, value in kept["properties"].items()}
        return kept | {key: _plain(kept[key]) for key in kept if key != "properties"}
    return {key: _plain(value) for key, value in kept.items()}


if __name__ == "__main__":
    main()
