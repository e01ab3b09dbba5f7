"""Checks of several fields, as the spec declares them → CEL."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tandem_engine.api.checks import (
    Both,
    Check,
    Choice,
    Comparison,
    Constant,
    Either,
    Expression,
    Minus,
    Not,
    Quotient,
    Remainder,
    Times,
    Value,
    Written,
)
from tandem_engine.api.model import field_names
from tandem_operator.crd.cel import Rule
from tandem_operator.crd.unfilled import NOT_FILLED
from tandem_serve.api.problems import part_of
from tandem_serve.api.resource_checks import GIBIBYTE, Bytes, Gibibytes

_OPPOSITE: Final[Mapping[str, str]] = {"==": "!=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}


def check_rule(model: type[BaseModel], check: Check, at: str) -> Rule:
    """Return the rule of a check of `model`, whose node is at the path `at`."""
    writer = _Writer(model, at, frozenset(_written(check.refused)))
    text, values = check.template()
    return Rule(
        at=at,
        rule=writer.guarded(check.refused),
        text=text,
        values=tuple(writer.text(value) for value in values),
        field=f".{check.field}",
    )


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes expressions about the fields of one model."""

    model: type[BaseModel]
    at: str
    """Path of the model's node, which is `self`."""

    written: frozenset[str]
    """Fields that are there wherever their value decides."""

    def guarded(self, refused: Expression) -> str:
        """Return CEL that is true where `refused` does not hold, or an amount is no quantity."""
        amounts = sorted({part.path for part in _parts(refused) if isinstance(part, Bytes)})
        guards = [f"!isQuantity(self.{path})" for path in amounts]
        return " || ".join([*guards, self.text(Not(refused))])

    def text(self, expression: Expression) -> str:
        """Return the expression in CEL."""
        match expression:
            case Comparison(left, sign, right):
                return self._compared(left, sign, right)
            case Both(left, right):
                return f"{self._operand(left, Both)} && {self._operand(right, Both)}"
            case Either(left, right):
                return f"{self._operand(left, Either)} || {self._operand(right, Either)}"
            case Not(of):
                return self._negated(of)
            case _:
                return self._term(expression)

    def _term(self, expression: Expression) -> str:
        match expression:
            case Value(path):
                return self._value(path)
            case Written(path):
                return f"has(self.{path})"
            case Constant(value):
                return _literal(value)
            case Gibibytes(paths):
                sizes = " + ".join(f"(self.{path} > 0 ? self.{path} : 0)" for path in paths)
                return f"double({sizes}) * {float(GIBIBYTE)}"
            case Bytes(path):
                return f"quantity(self.{path}).asApproximateFloat()"
            case _:
                return self._number(expression)

    def _number(self, expression: Expression) -> str:
        match expression:
            case Minus(left, right):
                return f"{self._factor(left)} - {self._factor(right)}"
            case Times(left, right):
                return f"{self._factor(left)} * {self._factor(right)}"
            case Quotient(left, right):
                return f"{self._factor(left)} / {self._factor(right)}"
            case Remainder(left, right):
                return f"{self._factor(left)} % {self._factor(right)}"
            case Choice(condition, then, otherwise):
                alternatives = f"{self.text(then)} : {self.text(otherwise)}"
                return f"({self.text(condition)} ? {alternatives})"
            case _:
                raise TypeError(f"{expression!r} has no form in CEL; write its rule by hand")

    def _factor(self, expression: Expression) -> str:
        """Return a number, in brackets where it is computed itself."""
        text = self.text(expression)
        return f"({text})" if isinstance(expression, Minus | Times | Quotient | Remainder) else text

    def _operand(self, expression: Expression, around: type[Expression]) -> str:
        """Return an operand, in brackets where it binds less than what is around it."""
        simple = _without_negations(expression)
        text = self.text(simple)
        is_loose = isinstance(simple, Both | Either) and not isinstance(simple, around)
        return f"({text})" if is_loose else text

    def _negated(self, expression: Expression) -> str:
        match expression:
            case Comparison(left, sign, right):
                return self._compared(left, _OPPOSITE[sign], right)
            case Both() | Either() | Not():
                return self.text(_without_negations(Not(expression)))
            case _:
                return f"!{self.text(expression)}"

    def _compared(self, left: Expression, sign: str, right: Expression) -> str:
        plain = f"{{}} {sign} {self.text(right)}"
        if not isinstance(left, Value) or not isinstance(right, Constant):
            return plain.format(self.text(left))
        if self._is_unfilled(left.path):
            is_absence_enough = (self._default(left.path) == right.value) == (sign == "==")
        elif self._is_optional(left.path):
            is_absence_enough = sign == "!="
        else:
            return plain.format(self.text(left))
        path = f"self.{left.path}"
        if is_absence_enough:
            return f"(!has({path}) || {plain.format(path)})"
        return f"(has({path}) && {plain.format(path)})"

    def _value(self, path: str) -> str:
        """Return a field's value, with the default that the API server does not fill in."""
        if not self._is_unfilled(path):
            return f"self.{path}"
        return f"(has(self.{path}) ? self.{path} : {_literal(self._default(path))})"

    def _is_unfilled(self, path: str) -> bool:
        return path not in self.written and f"{self.at}.{path}" in NOT_FILLED

    def _is_optional(self, path: str) -> bool:
        if path in self.written:
            return False
        field = self._field(path)
        return not field.is_required() and field.default is None and field.default_factory is None

    def _default(self, path: str) -> Any:
        return self._field(path).default

    def _field(self, path: str) -> FieldInfo:
        *parents, last = path.split(".")
        model = self.model
        for parent in parents:
            part = part_of(model.model_fields[field_names(model)[parent]])
            if part is None:
                raise KeyError(path)
            model = part
        return model.model_fields[field_names(model)[last]]


def _without_negations(expression: Expression) -> Expression:
    """Return an equal expression with negations only around what is not And, Or and Not."""
    match expression:
        case Not(Not(of)):
            return _without_negations(of)
        case Not(Both(left, right)):
            return Either(_without_negations(Not(left)), _without_negations(Not(right)))
        case Not(Either(left, right)):
            return Both(_without_negations(Not(left)), _without_negations(Not(right)))
        case _:
            return expression


def _written(refused: Expression) -> Iterator[str]:
    """Yield the fields without which `refused` does not hold."""
    match refused:
        case Written(path):
            yield path
        case Both(left, right):
            yield from _written(left)
            yield from _written(right)


def _parts(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all that it consists of."""
    yield expression
    match expression:
        case (
            Both(left, right)
            | Either(left, right)
            | Comparison(left, _, right)
            | Minus(left, right)
            | Times(left, right)
            | Quotient(left, right)
            | Remainder(left, right)
        ):
            yield from _parts(left)
            yield from _parts(right)
        case Choice(condition, then, otherwise):
            for part in (condition, then, otherwise):
                yield from _parts(part)
        case Not(of):
            yield from _parts(of)


def _literal(value: int | str | bool) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return json.dumps(value)
