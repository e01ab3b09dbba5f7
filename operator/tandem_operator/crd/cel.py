"""One rule in CEL, the language of checks inside a CRD."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """One CEL rule: its node in the schema, its expression, and its message."""

    at: str
    """Path of the schema's node that is `self`."""

    rule: str
    """CEL expression; true: the object is valid."""

    text: str
    """The sentence, with %s and %d for `values`."""

    values: tuple[str, ...] = ()
    """CEL expressions of the values in the sentence."""

    field: str = ""
    """Path, from `at`, of the invalid field, such as .splitFuse.enabled."""

    stands_for: str = ""
    """The validator of the spec that checks several fields as this rule does."""

    def document(self) -> dict[str, Any]:
        """Return the rule in the form of a CRD."""
        # A messageExpression that gives a line break, which a text may hold, gives way to message.
        message = self.text.replace("%s", "…").replace("%d", "…")
        document: dict[str, Any] = {"rule": self.rule, "message": message}
        if self.values:
            text = json.dumps(self.text, ensure_ascii=False)
            document["messageExpression"] = f"{text}.format([{', '.join(self.values)}])"
        if self.field:
            document["fieldPath"] = self.field
        return document


def rules_by_path(rules: Iterable[Rule]) -> dict[str, list[dict[str, Any]]]:
    """Return `x-kubernetes-validations` of every node that has some."""
    by_path: dict[str, list[dict[str, Any]]] = {}
    for rule in rules:
        by_path.setdefault(rule.at, []).append(rule.document())
    return by_path
