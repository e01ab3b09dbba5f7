"""Constraints and checks of the spec, as rules in CEL."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import AfterValidator, BaseModel

from tandem_engine.api.checks import Check, Expression, Value, Written, at_most
from tandem_engine.api.constraints import TextFormat
from tandem_engine.api.model import Model
from tandem_operator.crd.derived_rules import derived_rules
from tandem_operator.crd.expressions import check_rule


class Sizes(Model):
    """Two numbers that a manifest may leave out, one that it may not, and a text."""

    small: int | None = None
    large: int = 8
    name: str = ""


def in_cel(refused: Expression) -> str:
    return check_rule(Sizes, Check(field="small", refused=refused, problem="no"), "spec").rule


@pytest.mark.parametrize(
    ("refused", "rule"),
    [
        (Value("large").equals(8), "self.large != 8"),
        (~Value("name").equals("a"), "self.name == 'a'"),
        (Value("small").equals(1), "(!has(self.small) || self.small != 1)"),
        (~Value("small").equals(1), "(has(self.small) && self.small == 1)"),
        (
            Written("small") & (Value("small") > Value("large")),
            "!has(self.small) || self.small <",
        ),
        (~(Written("small") | ~Written("name")), "has(self.small) || !has(self.name)"),
    ],
)
def test_a_check_is_written_in_cel(refused: Expression, rule: str) -> None:
    assert in_cel(refused).startswith(rule)


def test_a_default_that_is_not_filled_in_stands_in_the_rule() -> None:
    class Schedule(Model):
        max_batch_size: int = 200
        max_n: int | None = None

    rule = check_rule(Schedule, at_most("maxN", "maxBatchSize"), "spec.engine.schedule")

    default = "(has(self.maxBatchSize) ? self.maxBatchSize : 200)"
    assert rule.rule == f"!has(self.maxN) || self.maxN <= {default}"
    assert rule.values == ("self.maxN", default)
    assert rule.text.startswith("maxN %s is larger than maxBatchSize %s;")


def test_alternatives_are_grouped_before_they_are_anchored() -> None:
    class Named(Model):
        name: Annotated[str, AfterValidator(TextFormat(matches=("a|b",), problem="is no name"))]

    (rule,) = derived_rules(Named, "spec")

    assert rule.rule == "self.matches(r'^(a|b)$')"


def test_a_constraint_without_a_form_in_cel_stops_the_generator() -> None:
    class Free(Model):
        name: Annotated[str, AfterValidator(str.strip)]

    with pytest.raises(TypeError, match=r"spec\.name: .* has no form in CEL; declare it as one of"):
        list(derived_rules(Free, "spec"))


def test_an_expression_without_a_form_in_cel_stops_the_generator() -> None:
    @dataclass(frozen=True)
    class Moon(Expression):
        def evaluate(self, model: BaseModel) -> Any:
            return model is None

    class Tides(Model):
        CHECKS: ClassVar[tuple[Check, ...]] = (Check(field="x", refused=Moon(), problem="no"),)

    with pytest.raises(TypeError, match=r"Moon.* has no form in CEL; write its rule by hand"):
        list(derived_rules(Tides, "spec"))
