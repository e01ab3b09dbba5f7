"""Constraints and checks of the pydantic spec → CEL rules."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import AfterValidator, BaseModel

from tandem_engine.api.constraints import (
    MappingFormat,
    MultipleOf,
    NotEqual,
    TextFormat,
)
from tandem_engine.api.model import Model, field_names
from tandem_operator.crd.cel import Rule
from tandem_operator.crd.expressions import check_rule
from tandem_operator.crd.schema import unwrapped
from tandem_serve.api.quantity import LeastQuantity


def derived_rules(model: type[BaseModel], at: str) -> Iterator[Rule]:
    """Yield the rules of everything that `model`, whose node is at the path `at`, declares."""
    for name, python_name in field_names(model).items():
        field = model.model_fields[python_name]
        yield from _type_rules(field.annotation, field.metadata, f"{at}.{name}")
    if issubclass(model, Model):
        yield from (check_rule(model, check, at) for check in model.CHECKS)


def format_rule(form: TextFormat, at: str, *, field: str = "") -> Rule:
    """Return the rule of a text's format.

    Args:
        form: The format.
        at: Path of the text's node, or of one above it.
        field: Path of the text from there.
    """
    text = f"self{field}"
    return Rule(
        at=at,
        rule=_allows(form, text),
        text=f"'%s' {form.problem}",
        values=(text,) * (1 + form.problem.count("%s")),
        field=field,
    )


def _type_rules(annotation: Any, metadata: list[Any], at: str) -> Iterator[Rule]:
    annotation, inner = unwrapped(annotation)
    constraints = [*metadata, *inner]
    for constraint in constraints:
        if isinstance(constraint, AfterValidator):
            yield from _constraint_rules(constraint.func, constraints, at)
    if get_origin(annotation) is list:
        yield from _type_rules(get_args(annotation)[0], [], f"{at}[]")
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from derived_rules(annotation, at)


def _constraint_rules(constraint: object, beside: list[Any], at: str) -> Iterator[Rule]:
    match constraint:
        case TextFormat():
            yield format_rule(constraint, at)
        case MappingFormat():
            yield from _mapping_rules(constraint, at)
        case MultipleOf(tile):
            yield _multiple_rule(tile, beside, at)
        case NotEqual(excluded, problem):
            yield Rule(at=at, rule=f"self != {excluded}", text=problem)
        case LeastQuantity(bound, problem):
            yield Rule(
                at=at,
                rule=f"!isQuantity(self) || !quantity(self).isLessThan(quantity('{bound}'))",
                text=f"'%s' {problem}",
                values=("self",),
            )
        case _:
            raise TypeError(
                f"{at}: {constraint!r} has no form in CEL; declare it as one of "
                "tandem_engine.api.constraints, or write its rule by hand"
            )


def _allows(form: TextFormat, text: str) -> str:
    """Return CEL that is true when `text`, a CEL expression, has the format."""
    terms = [f"{text}.matches({_regex(pattern)})" for pattern in form.matches]
    terms += [f"!{text}.matches({_regex(pattern)})" for pattern in form.excludes]
    allowed = " && ".join(terms)
    others = [f"!{text}.startsWith('{form.prefix}')"] if form.prefix else []
    others += [f"{text} in {list(form.exceptions)}"] if form.exceptions else []
    if not others:
        return allowed
    return " || ".join([*others, f"({allowed})" if len(terms) > 1 else allowed])


def _regex(pattern: str) -> str:
    """Return a raw string of CEL; without a group `^` and `$` would bind to one alternative."""
    return f"r'^{pattern}$'" if "|" not in pattern else f"r'^({pattern})$'"


def _mapping_rules(form: MappingFormat, at: str) -> Iterator[Rule]:
    # Naming the key would need a second search over the mapping.
    yield Rule(
        at=at,
        rule=f"self.all(key, {_allows(form.keys, 'key')})",
        text=f"a key {form.keys.problem}",
    )
    yield Rule(
        at=at,
        rule=f"self.all(key, {_allows(form.values, 'self[key]')})",
        text=f"a value {form.values.problem}",
    )


def _multiple_rule(tile: int, beside: list[Any], at: str) -> Rule:
    # The schema refuses a number out of its range.
    bounds = [f"self < {bound.ge}" for bound in beside if isinstance(bound, Ge)]
    bounds += [f"self > {bound.le}" for bound in beside if isinstance(bound, Le)]
    lower = f"self / {tile} * {tile}"
    return Rule(
        at=at,
        rule=" || ".join([*bounds, f"self % {tile} == 0"]),
        text=f"%s is not a multiple of {tile}; use %s or %s",
        values=("self", lower, f"{lower} + {tile}"),
    )
