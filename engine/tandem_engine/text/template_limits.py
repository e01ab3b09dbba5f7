"""A sandbox for templates that ends them: bounded iterations, calls, time and memory.

jinja2's own sandbox keeps a template from Python's inside and bounds `range`, but nested loops,
macros that call themselves twice, and texts that double may take for ever and all memory. What is
made here is estimated before and counted after. What is not bounded is the time of one comparison
of lists that hold each other many times: it takes a template that means harm, and that is chosen
by who chooses the weights.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from jinja2 import Template, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from markupsafe import EscapeFormatter, Markup

from tandem_engine.text.template_budget import BUDGET, Budget, RenderLimits
from tandem_engine.text.template_costs import (
    bounded_filters,
    expect_call,
    expect_conversion,
    expect_field,
    expect_operator,
)

_REFUSED_METHODS: Final = frozenset({"encode", "translate", "maketrans", "to_bytes"})
"""Methods of texts and numbers that make what nothing here counts, and that no template needs."""


def render_bounded(template: Template, variables: Mapping[str, Any], limits: RenderLimits) -> str:
    """Render a template of a `BoundedEnvironment`.

    Raises:
        TemplateRuntimeError: it takes more than is allowed.
    """
    budget = Budget(limits)
    token = BUDGET.set(budget)
    try:
        parts, length = [], 0
        for part in template.generate(variables):
            length += len(part)
            budget.expect(length)
            parts.append(part)
        return "".join(parts)
    finally:
        BUDGET.reset(token)


class _Counting(CodeGenerator):
    """Compiles loops that count their iterations, and what makes texts and lists to count them."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        node.body.insert(0, nodes.ExprStmt(_next_iteration()).set_lineno(node.lineno))
        if node.test is not None:
            node.test = nodes.And(_next_iteration(), node.test)
        super().visit_For(node, frame)

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:  # noqa: N802
        terms: list[nodes.Expr] = [node.right]
        left = node.left
        while isinstance(left, nodes.Add):
            terms.append(left.right)
            left = left.left
        self._write_call("added", [left, *reversed(terms)], frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self._write_call("joined", node.nodes, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.counted(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self.write("environment.counted(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self.write("environment.counted(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_EvalContextModifier(  # noqa: N802 - jinja2's name
        self,
        node: nodes.EvalContextModifier,
        frame: Frame,  # noqa: ARG002
    ) -> None:
        """Refuse `{% autoescape %}`: it makes HTML, and a prompt is none."""
        self.fail("autoescape is not possible in a chat template", node.lineno)

    visit_ScopedEvalContextModifier = visit_EvalContextModifier  # noqa: N815

    def _write_call(self, name: str, terms: Iterable[nodes.Expr], frame: Frame) -> None:
        self.write(f"environment.{name}((")
        for term in terms:
            self.visit(term, frame)
            self.write(", ")
        self.write("))")


def _next_iteration() -> nodes.Expr:
    return nodes.EnvironmentAttribute("next_iteration")


class _Formatter(SandboxedFormatter):
    """`str.format`, whose fields are estimated and counted."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        budget = BUDGET.get()
        expect_field(budget, value, format_spec)
        return budget.take(super().format_field(value, format_spec))

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is None:
            return value
        budget = BUDGET.get()
        expect_conversion(budget, value)
        return budget.take(super().convert_field(value, conversion))


class _EscapeFormatter(_Formatter, EscapeFormatter):
    """`Markup.format`, which escapes."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """jinja2's sandbox, whose templates count what they do while `render_bounded` runs them."""

    code_generator_class: type[CodeGenerator] = _Counting
    intercepted_binops = frozenset({"*", "**", "%", "//"})

    def __init__(self, **options: Any) -> None:
        super().__init__(finalize=_written, **options)
        del self.globals["lipsum"]

    def bound_filters(self) -> None:
        """Bound the filters that it has."""
        self.filters = bounded_filters(self.filters)

    @property
    def next_iteration(self) -> bool:
        """Count an iteration of a loop. An attribute, since calls from templates cost much more."""
        BUDGET.get().step()
        return True

    def counted(self, made: Any) -> Any:
        """A text or list that a slice or a literal has made."""
        return BUDGET.get().take(made)

    def added(self, terms: tuple[Any, ...]) -> Any:
        """The sum of terms."""
        budget = BUDGET.get()
        if all(type(term) is str for term in terms):
            budget.expect(sum(map(len, terms)))
            return budget.take("".join(terms))
        total = terms[0]
        for term in terms[1:]:
            total = budget.take(total + term)
        return total

    def joined(self, parts: tuple[Any, ...]) -> str:
        """The texts of what `~` joins."""
        return self.concat([str(_written(part)) for part in parts])

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The text of a block, a macro or a sum."""
        texts = list(parts)
        budget = BUDGET.get()
        budget.expect(sum(map(len, texts)))
        text: str = budget.take("".join(texts))
        return text

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Keep methods away whose results are not counted."""
        if attr in _REFUSED_METHODS and isinstance(obj, str | int):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Any:
        """Bound `str.format` and `str.format_map`."""
        if super().wrap_str_format(value) is None:
            return None
        text, takes_mapping = value.__self__, value.__name__ == "format_map"
        is_markup = isinstance(text, Markup)
        formatter = _EscapeFormatter(self, escape=text.escape) if is_markup else _Formatter(self)

        def format_text(*args: Any, **kwargs: Any) -> str:
            if takes_mapping:
                (kwargs,), args = args, ()
            made: str = type(text)(formatter.vformat(text, args, kwargs))
            return made

        return format_text

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls."""
        budget = BUDGET.get()
        budget.step()
        args = expect_call(budget, called, args, kwargs)
        made = super().call(context, called, *args, **kwargs)
        return budget.take_items(made) if isinstance(made, list) else budget.take(made)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what makes texts, lists and numbers longer, if it is not for ever."""
        budget = BUDGET.get()
        expect_operator(budget, operator, left, right)
        return budget.take(super().call_binop(context, operator, left, right))


def _written(value: Any) -> Any:
    """A value that is to be written, after its text was estimated."""
    if not isinstance(value, str | int):
        budget = BUDGET.get()
        budget.expect(budget.text_length(value))
        if isinstance(value, list | tuple | dict):
            return budget.take(str(value))
    return value
