"""A sandbox for templates that ends them: bounded iterations, calls, time and lengths of texts.

jinja2's own sandbox keeps a template from Python's inside and bounds `range`, but nested loops,
macros that call themselves twice, and texts that double may take for ever and all memory. What is
not bounded here is the result of a single filter or method of a text, such as `center`: it takes
a template that means harm, and that is chosen by who chooses the weights.
"""

import time
from collections.abc import Callable, Mapping, Sized
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from jinja2 import Template, TemplateRuntimeError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_STEPS_BETWEEN_CHECKS: Final = 1024
"""Steps between readings of the clock, which cost more than a step; a power of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderLimits:
    """Limits of one rendering. Twenty thousand messages take a tenth of it."""

    steps: int = 2_000_000
    """Iterations of loops, and calls."""
    seconds: float = 5.0
    """Time of the processor."""
    characters: int = 2**25
    """Length of the whole text, and of any text or list that an operator makes."""
    bits: int = 2**14
    """Of a whole number that an operator makes."""


class _Budget:
    """The remaining budget of one rendering."""

    def __init__(self, limits: RenderLimits) -> None:
        self.limits = limits
        self.characters = limits.characters
        self._steps = limits.steps
        self._until = time.thread_time() + limits.seconds

    def step(self) -> None:
        """Count an iteration or a call."""
        self._steps -= 1
        if self._steps & (_STEPS_BETWEEN_CHECKS - 1) == 0:
            self._check_limits()

    def _check_limits(self) -> None:
        if self._steps <= 0:
            raise TemplateRuntimeError(
                f"it takes more than {self.limits.steps} iterations and calls"
            )
        if time.thread_time() > self._until:
            raise TemplateRuntimeError(f"it takes more than {self.limits.seconds} s")

    def check_length(self, length: int) -> None:
        """Refuse a text that is too long."""
        if length > self.characters:
            raise TemplateRuntimeError(f"it makes a text of more than {self.characters} characters")

    def check_bits(self, bits: float) -> None:
        """Refuse a number that is too large."""
        if bits > self.limits.bits:
            raise TemplateRuntimeError(f"it makes a number of more than {self.limits.bits} bits")


_Sum = TypeVar("_Sum", nodes.BinExpr, nodes.Concat)
_BUDGET: ContextVar[_Budget] = ContextVar("template_budget")


def render_bounded(template: Template, variables: Mapping[str, Any], limits: RenderLimits) -> str:
    """Render a template of a `BoundedEnvironment`.

    Raises:
        TemplateRuntimeError: it takes more than is allowed.
    """
    budget = _Budget(limits)
    token = _BUDGET.set(budget)
    try:
        parts, length = [], 0
        for part in template.generate(variables):
            length += len(part)
            budget.check_length(length)
            parts.append(part)
        return "".join(parts)
    finally:
        _BUDGET.reset(token)


class _Counting(CodeGenerator):
    """Compiles loops that count their iterations, and `+` and `~` that check their result."""

    _is_within_sum = False

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        node.body.insert(0, nodes.ExprStmt(_next_iteration()).set_lineno(node.lineno))
        if node.test is not None:
            node.test = nodes.And(_next_iteration(), node.test)
        super().visit_For(node, frame)

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        self._check_sum(node, frame, super().visit_Add)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self._check_sum(node, frame, super().visit_Concat)

    def _check_sum(self, node: _Sum, frame: Frame, visit: Callable[[_Sum, Frame], None]) -> None:
        """Write a sum, which is checked as a whole: its parts are bounded, and it has few."""
        if self._is_within_sum:
            visit(node, frame)
            return
        self._is_within_sum = True
        self.write("environment.checked(")
        visit(node, frame)
        self.write(")")
        self._is_within_sum = False


def _next_iteration() -> nodes.Expr:
    return nodes.EnvironmentAttribute("next_iteration")


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, whose templates count what they do while `render_bounded` runs them."""

    code_generator_class: type[CodeGenerator] = _Counting
    intercepted_binops = frozenset({"*", "**"})

    @property
    def next_iteration(self) -> bool:
        """Count an iteration of a loop. An attribute, since calls from templates cost much more."""
        _BUDGET.get().step()
        return True

    def checked(self, made: Any) -> Any:
        """A text or list that a sum has made."""
        if isinstance(made, str | list | tuple):
            _BUDGET.get().check_length(len(made))
        return made

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls."""
        _BUDGET.get().step()
        return super().call(context, called, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what makes texts, lists and numbers longer, if it is not for ever."""
        _check_operands(_BUDGET.get(), operator, left, right)
        return super().call_binop(context, operator, left, right)


def _check_operands(budget: _Budget, operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if operator == "**":
            budget.check_bits(left.bit_length() * max(0, right))
        elif operator == "*":
            budget.check_bits(left.bit_length() + right.bit_length())
        return
    for length, times in ((left, right), (right, left)):
        if isinstance(length, Sized) and isinstance(times, int):
            budget.check_length(len(length) * times)
