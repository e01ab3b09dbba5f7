"""Events are said once, counted, and forgotten."""

from tandem_operator.events import REPEAT_AFTER_S, EventMemory
from tandem_operator.transitions import Note

NOTE = Note("Warning", "ReplicaFailed", "it fails")


def test_the_first_time_is_a_new_event() -> None:
    assert EventMemory().say("u", NOTE, 0.0, "e1") == ("e1", 1)


def test_a_repeat_within_the_minute_is_counted_and_not_posted() -> None:
    memory = EventMemory()
    memory.say("u", NOTE, 0.0, "e1")

    assert memory.say("u", NOTE, 30.0, "e2") is None
    assert memory.say("u", NOTE, REPEAT_AFTER_S, "e3") == ("e1", 3)
    assert memory.say("u", NOTE, REPEAT_AFTER_S + 1, "e4") is None


def test_another_object_reason_or_message_is_another_event() -> None:
    memory = EventMemory()
    memory.say("u", NOTE, 0.0, "e1")

    assert memory.say("v", NOTE, 0.0, "e2") == ("e2", 1)
    assert memory.say("u", Note("Warning", "Other", "it fails"), 0.0, "e3") == ("e3", 1)
    assert memory.say("u", Note("Warning", "ReplicaFailed", "else"), 0.0, "e4") == ("e4", 1)


def test_what_is_gone_is_forgotten() -> None:
    memory = EventMemory()
    memory.say("u", NOTE, 0.0, "e1")
    memory.say("v", NOTE, 0.0, "e2")
    memory.forget("u")

    assert len(memory) == 1
    assert memory.say("u", NOTE, 1.0, "e3") == ("e3", 1)


def test_the_memory_has_an_end() -> None:
    memory = EventMemory(remembered=10)
    for number in range(1000):
        memory.say(f"u{number}", NOTE, 0.0, "e")

    assert len(memory) == 10
