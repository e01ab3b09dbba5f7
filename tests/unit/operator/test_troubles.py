"""Which troubles belong into a status."""

from tandem_operator.errors import Forbidden, Overloaded
from tandem_operator.facts import Problem
from tandem_operator.troubles import PATIENCE, Troubles


def test_what_will_not_pass_is_said_at_once() -> None:
    troubles = Troubles[str]()
    troubles.note("a", Forbidden("not allowed"))

    assert troubles.worth_a_word("a") == Problem("ApiForbidden", "not allowed")


def test_what_may_pass_is_said_when_it_lasts() -> None:
    troubles = Troubles[str]()
    said = []
    for _ in range(PATIENCE):
        troubles.note("a", Overloaded("too busy"))
        said.append(troubles.worth_a_word("a") is not None)

    assert said == [False] * (PATIENCE - 1) + [True]


def test_it_is_forgotten_when_it_is_over() -> None:
    troubles = Troubles[str]()
    troubles.note("a", Forbidden("not allowed"))
    troubles.clear("a")

    assert troubles.worth_a_word("a") is None
    assert troubles.worth_a_word("b") is None
