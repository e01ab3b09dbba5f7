"""Every metric of the operator is set by its code: one that nothing sets says 0 for ever."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from prometheus_client.metrics import MetricWrapperBase

import tandem_operator
from tandem_operator import metrics
from tandem_operator.metrics import Metrics

PACKAGE: Final = Path(tandem_operator.__file__).parent
OWN: Final = Path(metrics.__file__)
SETS: Final = frozenset({"inc", "set", "set_to_current_time", "observe"})


def trees() -> dict[Path, ast.Module]:
    return {file: ast.parse(file.read_text("utf-8")) for file in PACKAGE.rglob("*.py")}


def attributes(*holders: object) -> Counter[str]:
    """The names by which the holders have their metrics; two may have one of the same name."""
    return Counter(
        name
        for holder in holders
        for name, one in vars(holder).items()
        if isinstance(one, MetricWrapperBase)
    )


def set_in(tree: ast.AST) -> set[str]:
    """The attributes on which a value is set: `….NAME.inc()`, `….NAME.labels(…).inc()`."""
    functions = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    setters = (
        function
        for function in functions
        if isinstance(function, ast.Attribute) and function.attr in SETS
    )
    return {name for setter in setters if (name := owner(setter.value))}


def owner(node: ast.expr) -> str | None:
    """The attribute before `.inc`, without `.labels(…)` in between."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return owner(node.func.value) if node.func.attr == "labels" else None
    return node.attr if isinstance(node, ast.Attribute) else None


def methods(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for cls in tree.body:
        if isinstance(cls, ast.ClassDef):
            yield from (one for one in cls.body if isinstance(one, ast.FunctionDef))


def test_every_metric_is_set() -> None:
    found = trees()
    own = found.pop(OWN)
    named = {
        node.attr
        for tree in found.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
    }
    used = [method for method in methods(own) if method.name in named]
    # Each file, or method of the metrics' own, sets those of one holder.
    places = [*found.values(), *used]
    sets = Counter(name for place in places for name in set_in(place))

    operator = Metrics()
    assert attributes(operator, operator.autoscaler) - sets == Counter()
