"""Rules by their sentences, in what the API server and the operator say about a manifest."""

import re
from typing import Final

from tandem_operator.crd.cel import Rule
from tandem_operator.crd.rules import RULES

_SUBJECT_OF_A_MAPPING: Final = re.compile("^a (key|value) ")


def name_of(rule: Rule) -> str:
    """Path of the rule's field, and the beginning of its sentence."""
    return f"{rule.at}{rule.field}: {_beginning(rule)}".lstrip(".")


def rules_in(said: str) -> set[str]:
    """Names of the rules whose sentences are in a text with a line for each problem."""
    return {name_of(rule) for rule in RULES if _pattern(rule).search(said)}


def _beginning(rule: Rule) -> str:
    return rule.text.partition(";")[0]


def _pattern(rule: Rule) -> re.Pattern[str]:
    """The operator names the node of a rule, the API server the field below it."""
    node, field = (
        re.escape(path.lstrip(".")).replace(r"\[\]", r"(\[\d+\]|\.\d+)")
        for path in (rule.at, rule.at + rule.field)
    )
    subject = _SUBJECT_OF_A_MAPPING.sub("", _beginning(rule))
    sentence = re.escape(subject).replace("%s", ".*")
    return re.compile(rf"(^|[\s*\[])({node}|{field}): .*{sentence}", re.MULTILINE)
