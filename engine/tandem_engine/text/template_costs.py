"""What filters and methods of texts may make, estimated before they make it.

Each estimate has the arguments of its filter or method, and refuses what the budget does not have.
Filters and methods without an estimate make nothing that is longer than what they are given.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, Final

from jinja2 import Environment, TemplateRuntimeError, pass_environment
from jinja2.filters import make_attrgetter
from markupsafe import Markup

from tandem_engine.text.template_budget import BUDGET, Budget

_ESCAPED: Final = 12
"""Most characters of one that is escaped, which JSON has for what needs two."""
_SLOW: Final = 64
"""Bytes for a character of what is cut in pieces, by Python's own code."""
_QUADRATIC: Final = 4096
"""As if a character took these bytes: the time of some filters is the square of the length."""
_HIGHEST_PRECISION: Final = 4096
_DEEPEST: Final = 4096
"""Levels of lists within lists, beyond the depth at which JSON ends."""
_LINE_ENDS: Final = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_CONVERSION: Final = re.compile(
    r"%(?:\([^)]*\))?[#0\- +]*(\*|\d*)(?:\.(\*|\d*))?[hlL]?(.)", re.DOTALL
)
_NUMBER: Final = re.compile(r"\d+", re.ASCII)

_OF_LOOPS: Final = frozenset({"_loop_vars", "_block_vars"})
"""Arguments that jinja2 adds to a call within a loop."""

Estimate = Callable[..., None]


def expect_call(budget: Budget, called: Any, args: Any, kwargs: Any) -> Any:
    """Arguments of a call, after the result was estimated, if it is a method of a text.

    Returns:
        The positional arguments; what `join` is given is counted as it is read.
    """
    text = getattr(called, "__self__", None)
    if not isinstance(text, str):
        return args
    name = called.__name__
    estimate = _METHODS.get(name)
    if estimate is not None:
        named = {key: value for key, value in kwargs.items() if key not in _OF_LOOPS}
        estimate(budget, text, *args, **named)
    if name == "join" and len(args) == 1:
        return (_counted(budget, args[0], len(text)),)
    return args


def expect_operator(budget: Budget, operator: str, left: Any, right: Any) -> None:
    """Estimate what an operator makes of two operands."""
    if isinstance(left, int) and isinstance(right, int):
        _expect_number(budget, operator, left, right)
    elif operator == "%" and isinstance(left, str):
        _format(budget, left, right)
    elif operator == "*":
        for repeated, times in ((left, right), (right, left)):
            if isinstance(repeated, str | list | tuple) and isinstance(times, int):
                size = 1 if isinstance(repeated, str) else 8
                budget.expect(len(repeated) * times, bytes_each=size)


def _expect_number(budget: Budget, operator: str, left: int, right: int) -> None:
    if operator == "**":
        budget.check_bits(left.bit_length() * max(0, right))
    elif operator == "*":
        budget.check_bits(left.bit_length() + right.bit_length())
    else:  # // and %, whose time is the product of their lengths
        budget.check_bits(max(left.bit_length(), right.bit_length()))


def bounded_filters(filters: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The filters of an environment, each of which estimates and counts what it makes."""
    own = {**filters, "join": _join, "sum": _sum}
    return {name: _bounded(name, called) for name, called in own.items()}


def _bounded(name: str, called: Callable[..., Any]) -> Callable[..., Any]:
    if name in _UNBOUNDED:
        return called
    estimate = _FILTERS.get(name)
    first = 1 if hasattr(called, "jinja_pass_arg") else 0
    makes_items = name in _MAKE_ITEMS

    @wraps(called)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        budget = BUDGET.get()
        budget.step()
        if estimate is not None:
            estimate(budget, *args[first:], **kwargs)
        made = called(*args, **kwargs)
        return budget.take_items(made) if makes_items else budget.take(made)

    return bounded


def _counted(budget: Budget, items: Iterable[Any], separator: int) -> Iterator[Any]:
    """Items to join, refused where they become too long together."""
    length = 0
    for item in items:
        length += budget.text_length(item) + separator
        budget.expect(length)
        yield item


@pass_environment
def _join(
    environment: Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    """Join as jinja2 does, whose items are not counted."""
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    separator = str(d)
    return separator.join(map(str, _counted(BUDGET.get(), value, len(separator))))


@pass_environment
def _sum(
    environment: Environment,
    iterable: Iterable[Any],
    attribute: str | int | None = None,
    start: Any = 0,
) -> Any:
    """Add as jinja2 does, with each sum of lists counted."""
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    if attribute is not None:
        iterable = map(make_attrgetter(environment, attribute), iterable)
    budget = BUDGET.get()
    for item in iterable:
        start = budget.take(start + item)
    return start


def _as_text(bytes_each: int) -> Estimate:
    """Estimate for a filter that writes its value as text, with so many bytes a character."""

    def estimate(budget: Budget, value: Any, *_args: Any, **_kwargs: Any) -> None:
        budget.expect(budget.text_length(value), bytes_each=bytes_each)

    return estimate


def _pad(budget: Budget, value: Any, width: int = 80, *_fill: Any) -> None:
    budget.expect(max(budget.text_length(value), width))


def _expand_tabs(budget: Budget, text: str, tabsize: int = 8) -> None:
    budget.expect(len(text) + text.count("\t") * tabsize)


def _replace(budget: Budget, value: Any, old: Any, new: Any, count: int | None = None) -> None:
    for text in (value, old, new):
        budget.expect(budget.text_length(text), bytes_each=_ESCAPED)
    whole, removed, added = str(value), str(old), str(new)
    times = whole.count(removed)
    if count is not None and count >= 0:
        times = min(times, count)
    each = _ESCAPED if isinstance(value, Markup) else 1
    budget.expect(len(whole) + times * (len(added) - len(removed)), bytes_each=each)


def _split(budget: Budget, text: str, sep: str | None = None, maxsplit: int = -1) -> None:
    parts = text.count(sep) + 1 if sep else len(text) // 2 + 1
    budget.expect_items(min(parts, maxsplit + 1) if maxsplit >= 0 else parts)


def _split_lines(budget: Budget, text: str, *_keep: Any, **_keeps: Any) -> None:
    budget.expect_items(_count_lines(text))


def _indent(budget: Budget, s: str, width: int | str = 4, *_args: Any, **_kwargs: Any) -> None:
    lines = _count_lines(s)
    budget.expect_items(2 * lines)
    budget.expect(len(s) + lines * _length_or(width), bytes_each=_each(s))


def _wrap(
    budget: Budget,
    s: str,
    _width: int = 79,
    _break_long_words: bool = True,
    wrapstring: str | None = None,
    **_kwargs: Any,
) -> None:
    budget.expect(len(s), bytes_each=_SLOW)
    budget.expect(len(s) * (1 + len(wrapstring or "")))


def _urlize(budget: Budget, value: str, *args: Any, **kwargs: Any) -> None:
    added = sum(budget.text_length(argument) for argument in (*args, *kwargs.values()))
    budget.expect(len(value), bytes_each=_QUADRATIC)
    budget.expect(len(value) * (1 + added))


def _format_filter(budget: Budget, value: Any, *args: Any, **kwargs: Any) -> None:
    _format(budget, str(value) if budget.text_length(value) else "", kwargs or args)


def _format(budget: Budget, layout: str, values: Any) -> None:
    """Estimate `layout % values`: widths, precisions, and each value as often as it is written."""
    items = values if isinstance(values, tuple) else [values]
    lengths = [budget.text_length(item) for item in items]
    widest = max((abs(item) for item in items if isinstance(item, int)), default=0)
    longest = max(lengths, default=0)
    length, each = len(layout), _each(layout)
    for conversion in _CONVERSION.finditer(layout):
        length += longest
        for width in conversion.group(1, 2):
            length += widest if width == "*" else int(width or 0)
        if conversion[3] in "ra":
            each = _ESCAPED
        budget.expect(length, bytes_each=each)


def _to_json(
    budget: Budget,
    value: Any,
    _ensure_ascii: Any = None,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    *_args: Any,
    **_kwargs: Any,
) -> None:
    between = sum(map(len, separators)) if separators else 0
    added = between + (_length_or(indent) * _depth(value) if indent is not None else 0)
    length = budget.text_length(value)
    budget.expect(length, bytes_each=_ESCAPED)
    if added:
        # At least eight characters of the length are an item's, which begins a line at most.
        budget.expect(length + length // 4 * added)


def _slices(budget: Budget, _value: Any, number: int, *_fill: Any, **_kwargs: Any) -> None:
    budget.expect_items(number)


def _round(_budget: Budget, _value: Any, precision: int = 0, *_method: Any, **_kwargs: Any) -> None:
    if abs(precision) > _HIGHEST_PRECISION:
        raise TemplateRuntimeError(
            f"it rounds to {precision} places; at most {_HIGHEST_PRECISION} are possible"
        )


def _int(budget: Budget, value: Any, *_args: Any, **_kwargs: Any) -> None:
    if isinstance(value, str):
        budget.check_bits(len(value))  # a bit a digit at least


def _each(text: str) -> int:
    """Bytes that one character of other texts may become within a text: `Markup` escapes them."""
    return _ESCAPED if isinstance(text, Markup) else 1


def _length_or(width: int | str) -> int:
    return len(width) if isinstance(width, str) else max(0, width)


def _count_lines(text: str) -> int:
    return 1 + sum(1 for _ in _LINE_ENDS.finditer(text))


def _depth(value: Any) -> int:
    """Levels of lists within lists, to the depth at which JSON ends anyway."""
    level, items = 0, [value]
    while items and level < _DEEPEST:
        level += 1
        inner: dict[int, Any] = {}
        for item in items:
            within = item.values() if isinstance(item, Mapping) else item
            if isinstance(item, Mapping | list | tuple):
                inner |= {id(each): each for each in within if not isinstance(each, str)}
        items = list(inner.values())
    return level


_METHODS: Final[Mapping[str, Estimate]] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _pad),
    **dict.fromkeys(("split", "rsplit"), _split),
    "expandtabs": _expand_tabs,
    "replace": _replace,
    "splitlines": _split_lines,
}
_FILTERS: Final[Mapping[str, Estimate]] = {
    **dict.fromkeys(("safe", "trim"), _as_text(1)),
    **dict.fromkeys(("capitalize", "lower", "upper"), _as_text(3)),
    **dict.fromkeys(("e", "escape", "forceescape", "string"), _as_text(_ESCAPED)),
    **dict.fromkeys(("title", "urlencode", "wordcount"), _as_text(_SLOW)),
    **dict.fromkeys(("pprint", "striptags", "xmlattr"), _as_text(_QUADRATIC)),
    **dict.fromkeys(("batch", "slice"), _slices),
    "center": _pad,
    "format": _format_filter,
    "indent": _indent,
    "int": _int,
    "replace": _replace,
    "round": _round,
    "tojson": _to_json,
    "urlize": _urlize,
    "wordwrap": _wrap,
}
_UNBOUNDED: Final = frozenset(
    [
        "abs",
        "attr",
        "count",
        "d",
        "default",
        "first",
        "float",
        "items",
        "last",
        "length",
        "map",
        "max",
        "min",
        "random",
        "reject",
        "rejectattr",
        "select",
        "selectattr",
        "unique",
        "filesizeformat",
    ]
)
"""Filters that give what there is, one item at a time or a number."""
_MAKE_ITEMS: Final = frozenset({"dictsort", "groupby", "list"})


def expect_field(budget: Budget, value: Any, layout: str) -> None:
    """Estimate a field of `str.format`."""
    widths = sum(int(number) for number in _NUMBER.findall(layout))
    budget.expect(budget.text_length(value) + widths)


def expect_conversion(budget: Budget, value: Any) -> None:
    """Estimate the `!r` and its sisters in `str.format`."""
    budget.expect(budget.text_length(value), bytes_each=_ESCAPED)
