"""Checks of several fields, declared as data: pydantic evaluates them, the CRD holds them in CEL.

Fields are named by their paths in a manifest, from the model that has the check.
"""

import dataclasses
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import BaseModel

_PLACEHOLDER: Final = re.compile(r"\{([^}]+)\}")
_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Expression(ABC):
    """A term of an expression."""

    @abstractmethod
    def evaluate(self, model: BaseModel) -> Any:
        """Return its value in `model`."""

    def __and__(self, other: "Expression") -> "Expression":
        return Both(self, other)

    def __or__(self, other: "Expression") -> "Expression":
        return Either(self, other)

    def __invert__(self) -> "Expression":
        return Not(self)

    def equals(self, value: "int | str | Expression") -> "Expression":
        """Return the expression that it has this value."""
        other = value if isinstance(value, Expression) else Constant(value)
        return Comparison(self, "==", other)

    def __gt__(self, other: "Expression") -> "Expression":
        return Comparison(self, ">", other)

    def __ge__(self, other: "Expression") -> "Expression":
        return Comparison(self, ">=", other)

    def __lt__(self, other: "Expression") -> "Expression":
        return Comparison(self, "<", other)

    def __le__(self, other: "Expression") -> "Expression":
        return Comparison(self, "<=", other)


@dataclass(frozen=True, slots=True)
class Value(Expression):
    """The value of a field, its default included."""

    path: str

    def evaluate(self, model: BaseModel) -> Any:
        """Return the value; None: the field is absent and has no default."""
        owner, name = _owner(model, self.path)
        return getattr(owner, name)


@dataclass(frozen=True, slots=True)
class Written(Expression):
    """True for a field that the manifest has; a default that is filled in counts as written."""

    path: str

    def evaluate(self, model: BaseModel) -> bool:
        """Return True when the manifest has it."""
        owner, name = _owner(model, self.path)
        return name in owner.model_fields_set and getattr(owner, name) is not None


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A literal."""

    value: int | str

    def evaluate(self, model: BaseModel) -> int | str:  # noqa: ARG002  # the same in every model
        """Return the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Comparison(Expression):
    """A comparison of two values."""

    left: Expression
    operator: str
    right: Expression

    def evaluate(self, model: BaseModel) -> bool:
        """Return True when it holds."""
        return _COMPARE[self.operator](self.left.evaluate(model), self.right.evaluate(model))


@dataclass(frozen=True, slots=True)
class Minus(Expression):
    """A difference."""

    left: Expression
    right: Expression

    def evaluate(self, model: BaseModel) -> Any:
        """Return the difference."""
        return self.left.evaluate(model) - self.right.evaluate(model)


@dataclass(frozen=True, slots=True)
class Times(Expression):
    """A product."""

    left: Expression
    right: Expression

    def evaluate(self, model: BaseModel) -> Any:
        """Return the product."""
        return self.left.evaluate(model) * self.right.evaluate(model)


@dataclass(frozen=True, slots=True)
class Quotient(Expression):
    """A quotient of whole numbers, rounded down; none of them may be negative."""

    left: Expression
    right: Expression

    def evaluate(self, model: BaseModel) -> Any:
        """Return the quotient."""
        return self.left.evaluate(model) // self.right.evaluate(model)


@dataclass(frozen=True, slots=True)
class Remainder(Expression):
    """The remainder of that quotient."""

    left: Expression
    right: Expression

    def evaluate(self, model: BaseModel) -> Any:
        """Return the remainder."""
        return self.left.evaluate(model) % self.right.evaluate(model)


@dataclass(frozen=True, slots=True)
class Choice(Expression):
    """One of two values."""

    condition: Expression
    then: Expression
    otherwise: Expression

    def evaluate(self, model: BaseModel) -> Any:
        """Return the first where the condition holds, else the second; the other is not asked."""
        chosen = self.then if self.condition.evaluate(model) else self.otherwise
        return chosen.evaluate(model)


@dataclass(frozen=True, slots=True)
class Both(Expression):
    """The conjunction of two expressions."""

    left: Expression
    right: Expression

    def evaluate(self, model: BaseModel) -> bool:
        """Return True when both hold; the second is evaluated only where the first holds."""
        return bool(self.left.evaluate(model) and self.right.evaluate(model))


@dataclass(frozen=True, slots=True)
class Either(Expression):
    """The disjunction of two expressions."""

    left: Expression
    right: Expression

    def evaluate(self, model: BaseModel) -> bool:
        """Return True when one holds; the second is evaluated only where the first does not."""
        return bool(self.left.evaluate(model) or self.right.evaluate(model))


@dataclass(frozen=True, slots=True)
class Not(Expression):
    """The negation of an expression."""

    of: Expression

    def evaluate(self, model: BaseModel) -> bool:
        """Return True when it does not hold."""
        return not self.of.evaluate(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A combination of values that is refused."""

    field: str
    """Path of the field that the API server names."""

    refused: Expression
    problem: str
    """The sentence about it; {PATH} stands for the value of that field, or for the entry of
    `values` of that name."""

    values: Mapping[str, Expression] = dataclasses.field(default_factory=dict)
    """Values in the sentence that are not those of fields."""

    def problem_with(self, model: BaseModel) -> str | None:
        """Return the sentence about a model that is refused; None: it passes."""
        if not self.refused.evaluate(model):
            return None
        return _PLACEHOLDER.sub(
            lambda match: _as_yaml(self._value(match[1]).evaluate(model)), self.problem
        )

    def template(self) -> tuple[str, list[Expression]]:
        """Return the sentence with %s for each value, and those values."""
        names = _PLACEHOLDER.findall(self.problem)
        return _PLACEHOLDER.sub("%s", self.problem), [self._value(name) for name in names]

    def _value(self, name: str) -> Expression:
        return self.values.get(name) or Value(name)


def at_most(name: str, limit: str) -> Check:
    """Return the check that a field, where it is written, is not larger than another."""
    return Check(
        field=name,
        refused=Written(name) & (Value(name) > Value(limit)),
        problem=f"{name} {{{name}}} is larger than {limit} {{{limit}}}; lower it or raise {limit}",
    )


def _owner(model: BaseModel, path: str) -> tuple[BaseModel, str]:
    """Return the model that has the field at `path`, and the field's name there."""
    *parents, last = _attributes(type(model), path)
    for parent in parents:
        model = getattr(model, parent)
    return model, last


@cache
def _attributes(model: type[BaseModel], path: str) -> tuple[str, ...]:
    """Return the Python name of each part of a path; `model` has the first.

    Raises:
        KeyError: there is no such field.
    """
    first, _, rest = path.partition(".")
    names = {field.alias or name: name for name, field in model.model_fields.items()}
    name = names[first]
    if not rest:
        return (name,)
    annotation = model.model_fields[name].annotation
    if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):
        raise KeyError(path)
    return name, *_attributes(annotation, rest)


def _as_yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
