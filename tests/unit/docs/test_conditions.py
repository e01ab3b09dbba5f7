"""The page on conditions has every condition and reason that the operator may write, and no other.

Reasons are collected from the source: the argument or field called `reason`, the second of three
values where a function returns (status, reason, message), and class attributes of that name. One
that cannot be read from the source fails the test, so that a new reason is not missed.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tandem_operator.crd.status_schema import status_schema
from tandem_operator.scaling_law.decision import DecisionReason
from tandem_operator.status.conditions import ConditionType, ScalingConditionType
from tests.unit.docs.pages import ROOT, code_spans, rows

PAGE: Final = ROOT / "docs" / "reference" / "conditions.md"
PACKAGE: Final = ROOT / "operator" / "tandem_operator"
OTHERS: Final = frozenset({"commands", "scaling_law"})
"""`tandem explain` reads reasons, and writes none; those of decisions are an enumeration."""
CAMEL: Final = re.compile(r"[A-Z][A-Za-z]+")

Constants = Mapping[str, str]
Positions = Mapping[str, int]


def trees() -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
        if OTHERS.isdisjoint(path.relative_to(PACKAGE).parts)
    }


def constants(modules: Mapping[Path, ast.Module]) -> dict[str, str]:
    """Name → value of every constant text of the package."""
    return {
        node.target.id: node.value.value
        for module in modules.values()
        for node in module.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def of_classes(modules: Mapping[Path, ast.Module]) -> dict[str, int]:
    """Name of each class of the package with a field `reason` → its position."""
    found = {}
    for node in (node for module in modules.values() for node in ast.walk(module)):
        if isinstance(node, ast.ClassDef):
            fields = [
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and "ClassVar" not in ast.unparse(one.annotation)
            ]
            if "reason" in fields:
                found[node.name] = fields.index("reason")
    return found


def of_functions(module: ast.Module) -> dict[str, int]:
    """Name of each function of a module with an argument `reason` → its position in a call."""
    found = {}
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [arg.arg for arg in node.args.args if arg.arg != "self"]
            if "reason" in names:
                found[node.name] = names.index("reason")
    return found


def expressions(module: ast.Module, where: Positions) -> Iterator[ast.expr]:
    """Yield every expression that is a reason."""
    for node in ast.walk(module):
        match node:
            case ast.Call():
                yield from _of_call(node, where)
            case ast.FunctionDef(returns=ast.Subscript() as returns) if _is_triple(returns):
                yield from (
                    one.value.elts[1]
                    for one in ast.walk(node)
                    if isinstance(one, ast.Return) and isinstance(one.value, ast.Tuple)
                )
            case ast.ClassDef():
                yield from _of_class(node)


def _of_call(node: ast.Call, where: Positions) -> Iterator[ast.expr]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in where:
        return
    named = [keyword.value for keyword in node.keywords if keyword.arg == "reason"]
    yield from named or node.args[where[name] : where[name] + 1]


def _of_class(node: ast.ClassDef) -> Iterator[ast.expr]:
    for one in node.body:
        targets = one.targets if isinstance(one, ast.Assign) else []
        target = one.target if isinstance(one, ast.AnnAssign) else next(iter(targets), None)
        value = getattr(one, "value", None)
        if isinstance(target, ast.Name) and target.id == "reason" and value is not None:
            yield value


def _is_triple(returns: ast.Subscript) -> bool:
    parts = returns.slice.elts if isinstance(returns.slice, ast.Tuple) else []
    return [ast.unparse(part) for part in parts][1:] == ["str", "str"]


def texts(expression: ast.expr, known: Constants) -> Iterator[str]:
    """Yield the reasons that an expression may give.

    Raises:
        AssertionError: they cannot be read from the source.
    """
    match expression:
        case ast.Constant(value=str() as text):
            yield text
        case ast.IfExp():
            yield from texts(expression.body, known)
            yield from texts(expression.orelse, known)
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in known:
            yield known[name]
        case ast.Name(id="reason") | ast.Attribute(attr="reason"):
            return  # Handed on: it is collected where it was made.
        case ast.Subscript(slice=ast.Constant(value="reason")):
            return
        case ast.Subscript(slice=ast.Constant(value="class")):
            pending = status_schema()["properties"]["pendingChange"]["properties"]
            yield from pending["class"]["enum"]
        case _:
            raise AssertionError(f"which reason is {ast.unparse(expression)}?")


def reasons() -> set[str]:
    modules = trees()
    known, classes = constants(modules), of_classes(modules)
    found = {
        text
        for module in modules.values()
        for expression in expressions(module, classes | of_functions(module))
        for text in texts(expression, known)
    }
    return {text for text in found if CAMEL.fullmatch(text)} | {*DecisionReason}


def documented() -> set[str]:
    return {
        span
        for header, cells in rows(PAGE)
        if header[0] == "reason"
        for span in code_spans(cells[0])
    }


def test_every_reason_is_documented_and_no_other() -> None:
    assert documented() == reasons()


def test_every_reason_says_when_it_comes_and_what_to_do() -> None:
    told = [cells for header, cells in rows(PAGE) if header[0] == "reason"]

    assert len(told) > 40
    assert all(all(cells) for cells in told)


def test_every_condition_is_documented() -> None:
    told = {
        span
        for header, cells in rows(PAGE)
        if header[0] == "condition"
        for span in code_spans(cells[0])
    }

    assert told == {*ConditionType, *ScalingConditionType}
