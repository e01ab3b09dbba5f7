"""CEL rules for names and labels of Kubernetes."""

from typing import Final

from tandem_operator.crd.cel import Rule
from tandem_serve.api.pods import LABEL_KEY, LONGEST_SUBDOMAIN, SUBDOMAIN

_LABEL: Final = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_WITHOUT_POINTS: Final = (
    "use up to 63 lower-case letters, digits and '-', a letter or digit first and last"
)


def object_name(at: str) -> Rule:
    """Return the rule of a name without points."""
    return Rule(
        at=at,
        rule=f"self.matches(r'^{_LABEL}$')",
        text=f"'%s' is not the name of an object; {_WITHOUT_POINTS}",
        values=("self",),
    )


def secret_name(at: str) -> Rule:
    """Return the rule of a Secret's name, which may have points."""
    return Rule(
        at=at,
        rule=f"self.matches(r'^{SUBDOMAIN}$')",
        text=f"'%s' is not the name of an object; use up to {LONGEST_SUBDOMAIN} lower-case "
        "letters, digits, '-' and '.', a letter or digit first and last and beside each '.'",
        values=("self",),
    )


def volume_name(at: str) -> Rule:
    """Return the rule of a volume's name, which the schema requires."""
    return Rule(
        at=at,
        rule=f"self.name.matches(r'^{_LABEL}$')",
        text=f"name '%s' is not the name of an object; {_WITHOUT_POINTS}",
        values=("self.name",),
        field=".name",
    )


def label_key(text: str) -> str:
    """Return CEL that is true when a text is the key of a label or a taint."""
    return (
        f"{text}.matches(r'^{LABEL_KEY}$') && "
        f"(!{text}.contains('/') || {text}.matches(r'^[^/]{{1,{LONGEST_SUBDOMAIN}}}/'))"
    )
