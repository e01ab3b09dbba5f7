"""CEL rules: checks that a schema cannot express, or not with a helpful message.

They are derived from what the pydantic spec declares: formats and constraints of one field, and
checks of several. Only rules about all elements of a list are written by hand, and about the
object's name, which is no part of the spec. Ranges and choices are the schema's.

No change of a field is impossible (see tandem_serve.api.changes), so no rule compares with the old
object.
"""

from typing import Final

from tandem_operator.crd.cel import Rule
from tandem_operator.crd.cluster_formats import SERVICE_NAME, SOURCE_FIELDS, SOURCES
from tandem_operator.crd.derived_rules import derived_rules, format_rule
from tandem_serve.api.pods import LONGEST_ENV, ONE_SOURCE, VOLUME_SOURCES
from tandem_serve.api.spec import InferenceServiceSpec

_CLUSTER_RULES: Final = (
    format_rule(SERVICE_NAME, "", field=".metadata.name"),
    *(format_rule(form, field) for field in SOURCE_FIELDS for form in SOURCES),
)
_LENGTH_OF_ENV: Final = "self.map(e, size(e.name) + (has(e.value) ? size(e.value) : 0)).sum()"
_MOUNTED_NOWHERE: Final = (
    "self.volumeMounts.filter(m, !has(self.volumes) || !self.volumes.exists(v, v.name == m.name))"
)
# A sum, since the API server takes the cost of a list and of what is done with it for endless.
_NUM_SOURCES: Final = " + ".join(f"(has(self.{name}) ? 1 : 0)" for name in VOLUME_SOURCES)
_LIST_RULES: Final = (
    Rule(
        at="spec.runtime.env",
        rule=f"{_LENGTH_OF_ENV} <= {LONGEST_ENV}",
        text=f"the variables have %s characters together, of {LONGEST_ENV} at most; "
        "mount a ConfigMap or a Secret for what is longer",
        values=(_LENGTH_OF_ENV,),
    ),
    Rule(
        at="spec.runtime",
        rule=f"!has(self.volumeMounts) || {_MOUNTED_NOWHERE}.size() == 0",
        text="volumeMounts names the volume '%s', which is none of volumes; "
        "add it there, or name one that is",
        values=(f"{_MOUNTED_NOWHERE}[0].name",),
        field=".volumeMounts",
        stands_for="RuntimeSpec._mounts_fit",
    ),
    Rule(
        at="spec.runtime.volumes[]",
        rule=f"{_NUM_SOURCES} == 1",
        text=ONE_SOURCE,
        values=("self.name",),
        stands_for="Volume._has_one_source",
    ),
)

RULES: Final = (
    *_CLUSTER_RULES,
    *derived_rules(InferenceServiceSpec, "spec"),
    *_LIST_RULES,
)
