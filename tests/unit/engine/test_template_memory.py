"""Templates that would take all memory: refused in a process that has little."""

import resource
import subprocess
import sys
from typing import Final

import pytest

from tandem_engine.api.errors import CheckpointError, InvalidParameter
from tandem_engine.text.chat_template import ChatTemplate
from tandem_engine.text.template_budget import RenderLimits

_ROOM: Final = 200 * 2**20
"""Bytes that a rendering may add: the whole budget, and a text that is being made."""
_NUM_CHARACTERS: Final = 2**22
_NUM_BYTES: Final = 2**25
_CHARACTERS: Final = f"text of more than {_NUM_CHARACTERS} characters"
_MEMORY: Final = f"texts and lists of more than {_NUM_BYTES} bytes in all"
_LIST: Final = "{% set ns = namespace(a=['x']) %}{% for i in range(30) %}"
_DOUBLED: Final = _LIST + "{% set ns.a = [ns.a, ns.a] %}{% endfor %}"
_KEPT: Final = "{% set big = 'x' * 2**22 %}{% set ns = namespace(l=[]) %}{% for i in range(99) %}"

ATTACKS: Final = {
    "%": ("{{ '%999999999d' % 1 }}", _CHARACTERS),
    "% with a width of its own": ("{{ '%*d' % (999999999, 1) }}", _CHARACTERS),
    "% with a precision": ("{{ '%.999999999f' % 1 }}", _CHARACTERS),
    "% often": ("{{ ('%(a)s' * 99) % {'a': 'x' * 2**24} }}", _CHARACTERS),
    "replace": ("{{ ('x' * 2**20).replace('x', 'x' * 2**20) }}", _CHARACTERS),
    "replace between all": ("{{ ('x' * 2**20).replace('', 'x' * 2**20) }}", _CHARACTERS),
    "center": ("{{ 'x'.center(10**9) }}", _CHARACTERS),
    "ljust": ("{{ 'x'.ljust(10**9) }}", _CHARACTERS),
    "rjust": ("{{ 'x'.rjust(10**9) }}", _CHARACTERS),
    "zfill": ("{{ 'x'.zfill(10**9) }}", _CHARACTERS),
    "expandtabs": ("{{ '\\t'.expandtabs(10**9) }}", _CHARACTERS),
    "join": ("{{ ('x' * 2**20).join('x' * 2**20) }}", _CHARACTERS),
    "join of the same": ("{{ ''.join(['x' * 2**22] * 999) }}", _CHARACTERS),
    "format": ("{{ '{:999999999}'.format(1) }}", _CHARACTERS),
    "format with a width of its own": ("{{ '{:{}}'.format(1, 10**9) }}", _CHARACTERS),
    "format of the same": ("{{ ('{0}' * 999).format('x' * 2**22) }}", _MEMORY),
    "format_map": ("{{ '{a:999999999}'.format_map({'a': 1}) }}", _CHARACTERS),
    "a safe text's method": ("{{ ('x' | safe).center(10**9) }}", _CHARACTERS),
    "filter center": ("{{ 'x' | center(10**9) }}", _CHARACTERS),
    "filter center, constant": ("{{ 'x' | center(999999999) }}", _CHARACTERS),
    "filter format": ("{{ '%999999999d' | format(1) }}", _CHARACTERS),
    "filter indent": ("{{ ('x\\n' * 9999) | indent(10**6) }}", _CHARACTERS),
    "filter indent, first": ("{{ 'x' | indent(10**9, first=true) }}", _CHARACTERS),
    "filter join": ("{{ (['x' * 2**22] * 999) | join }}", _CHARACTERS),
    "filter join by attribute": ("{{ ([{'a': 'x' * 2**22}] * 999) | join('', 'a') }}", _CHARACTERS),
    "filter map": ("{{ range(999) | map('string') | map('center', 10**7) | join }}", "more than"),
    "filter replace": ("{{ ('x' * 2**20) | replace('x', 'x' * 2**20) }}", _CHARACTERS),
    "filter tojson": ("{{ [1] | tojson(indent=10**9) }}", _CHARACTERS),
    "filter urlize": ("{{ ('www.a.bc ' * 9**4) | urlize(target='x' * 2**20) }}", "more than"),
    "filter wordwrap": ("{{ ('x' * 2**16) | wordwrap(1, wrapstring='x' * 2**20) }}", _CHARACTERS),
    "filter batch": ("{{ [1] | batch(10**9, 'x') | list }}", _CHARACTERS),
    "filter slice": ("{{ [1] | slice(10**9) | list }}", _CHARACTERS),
    "filter sum": ("{{ ([[1] * 10**4] * 10**4) | sum(start=[]) }}", "more than"),
    "filter round": ("{{ 5 | round(-10**9) }}", "at most 4096"),
    "filter int": ("{{ ('f' * 2**22) | int(base=16) }}", "number of more than 16384 bits"),
    "split": ("{{ ('xy ' * 2**20).split() | length }}", _MEMORY),
    "splitlines": ("{{ ('xy\\n' * 2**20).splitlines() | length }}", _MEMORY),
    "lipsum": ("{{ lipsum(n=10**6) }}", "'lipsum' is undefined"),
    "encode": ("{{ 'x'.encode().center(10**9) }}", "'encode' of 'str' object is unsafe"),
    "translate": ("{{ ('a' * 2**20).translate({97: 'x' * 2**20}) }}", "is unsafe"),
    "to_bytes": ("{{ (5).to_bytes(10**9, 'big') }}", "is unsafe"),
    "strftime_now": ("{{ strftime_now('%999999999Y') }}", "no width of three digits"),
    "a list of lists": (_DOUBLED + "{{ ns.a }}", _CHARACTERS),
    "a list of lists, joined": (_DOUBLED + "{{ ns.a ~ 'x' }}", _CHARACTERS),
    "a list of lists as JSON": (_DOUBLED + "{{ ns.a | tojson }}", _CHARACTERS),
    "a list of lists as text": (_DOUBLED + "{{ ns.a | string }}", _CHARACTERS),
    "a list of lists by %": (_DOUBLED + "{{ '%s' % ns.a }}", _CHARACTERS),
    "a list of lists by format": (_DOUBLED + "{{ '{}'.format(ns.a) }}", _CHARACTERS),
    "a list of lists as reason": (_DOUBLED + "{{ raise_exception(ns.a) }}", _CHARACTERS),
    "a namespace": (_DOUBLED + "{{ ns }}", _CHARACTERS),
    "a namespace in itself": (
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns }}",
        _CHARACTERS,
    ),
    "a block": (
        "{% set big = 'x' * 2**22 %}{% set all %}{% for i in range(999) %}{{ big }}{% endfor %}"
        "{% endset %}",
        _CHARACTERS,
    ),
    "a macro": (
        "{% set big = 'x' * 2**22 %}{% macro m() %}{% for i in range(999) %}{{ big }}{% endfor %}"
        "{% endmacro %}{% set a = m() %}",
        _CHARACTERS,
    ),
    "a long sum": ("{% set a = 'x' * 2**22 %}{{ " + "a + " * 99 + "a }}", _CHARACTERS),
    "slices that are kept": (_KEPT + "{% set ns.l = ns.l + [big[1:]] %}{% endfor %}", _MEMORY),
    "texts that are kept": (_KEPT + "{% set ns.l = [ns.l, big.upper()] %}{% endfor %}", _MEMORY),
    "lists that are kept": (
        "{% set ns = namespace(l=[]) %}{% for i in range(999) %}"
        "{% set ns.l = [ns.l, range(99999) | list] %}{% endfor %}",
        _MEMORY,
    ),
}


# An eighth of what callers have: some attacks make their characters one by one.
LIMITS: Final = RenderLimits(seconds=999, characters=_NUM_CHARACTERS, memory=_NUM_BYTES)


def render(source: str, *, limits: RenderLimits | None = None) -> str:
    template = ChatTemplate(source, {}, limits=limits or LIMITS)
    return template.render([{"role": "user", "content": "hi"}], add_generation_prompt=True)


def _render_attacks() -> None:
    """Render all attacks with little memory; print each name and what was said."""
    pages = int(open("/proc/self/statm").read().split()[0])  # noqa: SIM115, PTH123 - a line
    room = pages * resource.getpagesize() + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    for name, (source, _) in ATTACKS.items():
        try:
            said = f"a text of {len(render(source))} characters"
        except InvalidParameter as error:
            said = str(error)
        except MemoryError:
            said = "MemoryError"
        sys.stdout.write(f"{name}\t{said[:600]}\n")
        sys.stdout.flush()


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What is said to each attack, in a process that has little memory."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.engine.test_template_memory"],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    return dict(lines) | {"": done.stderr[-400:]}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_template_that_would_take_all_memory_is_one_sentence(
    said: dict[str, str], name: str
) -> None:
    _, words = ATTACKS[name]

    assert words in said.get(name, said[""])
    assert said[name].startswith("The model's chat template refuses the messages: ")


def test_a_template_of_html_cannot_be_read() -> None:
    with pytest.raises(CheckpointError, match="autoescape is not possible in a chat template"):
        ChatTemplate("{% autoescape true %}{{ messages }}{% endautoescape %}", {})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'a %5d %-4s|%%' % (1, 'b') }}", "a     1 b   |%"),
        ("{{ '%(a)s %(a)r' % {'a': 'b'} }}", "b 'b'"),
        ("{{ 7 % 4 }} {{ 7 // 4 }} {{ 1 + 2.5 }} {{ [1] + [2] }}", "3 1 3.5 [1, 2]"),
        ("{{ 'aba'.replace('a', 'cc') }} {{ 'aba' | replace('a', 'c', 1) }}", "ccbcc cba"),
        ("{{ ', '.join(['a', 'b']) }} {{ [1, 2] | join('-') }}", "a, b 1-2"),
        ("{{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }}", "1-2"),
        ("{{ '{:>4}{a!r}'.format(1, a='b') }} {{ '{a}'.format_map({'a': 1}) }}", "   1'b' 1"),
        ("{{ 'a\\nb' | indent(2) }}|{{ 'a\\nb' | indent('>', true) }}", "a\n  b|>a\n>b"),
        ("{{ [[1], [2]] | sum(start=[]) }} {{ [1, 2] | sum }}", "[1, 2] 3"),
        ("{{ [{'a': 1}] | sum('a') }} {{ 2.567 | round(1) }}", "1 2.6"),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ ('<' | safe) + '<' }} {{ ('<' | e) ~ '<' }}", "<&lt; &lt;<"),
        ("{% for a in 'a b'.split() %}{{ a.center(3) }}{% endfor %}", " a  b "),
        ("{{ 'ab' ~ 1 ~ none ~ [1] }} {{ [1, none] }} {{ none }}", "ab1None[1] [1, None] None"),
        ("{{ [3, 1] | sort }} {{ {'b': 1, 'a': 2} | dictsort }}", "[1, 3] [('a', 2), ('b', 1)]"),
        ("{{ range(5) | batch(2) | list }}", "[[0, 1], [2, 3], [4]]"),
        ("{{ 'a b c'[2:] }} {{ messages[-1:][0].content[::-1] }}", "b c ih"),
    ],
)
def test_what_is_estimated_is_what_jinja2_makes(source: str, text: str) -> None:
    assert render(source) == text


def test_texts_that_are_made_count_together() -> None:
    source = "{% for a in range(50) %}{% set b = 'x'.center(50) %}{% endfor %}"

    with pytest.raises(InvalidParameter, match="of more than 1000 bytes in all"):
        render(source, limits=RenderLimits(memory=1000))
    assert render(source) == ""


if __name__ == "__main__":
    _render_attacks()
