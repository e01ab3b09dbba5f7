"""Events are said once, counted, and forgotten."""

from tandem_operator.k8s.event_correlator import REPEAT_AFTER_S, EventCorrelator, NewEvent

NOTE = NewEvent("Warning", "ReplicaFailed", "it fails")


def test_the_first_time_is_a_new_event() -> None:
    assert EventCorrelator().correlate("u", NOTE, 0.0, "e1") == ("e1", 1)


def test_a_repeat_within_the_minute_is_counted_and_not_posted() -> None:
    correlator = EventCorrelator()
    correlator.correlate("u", NOTE, 0.0, "e1")

    assert correlator.correlate("u", NOTE, 30.0, "e2") is None
    assert correlator.correlate("u", NOTE, REPEAT_AFTER_S, "e3") == ("e1", 3)
    assert correlator.correlate("u", NOTE, REPEAT_AFTER_S + 1, "e4") is None


def test_another_object_reason_or_message_is_another_event() -> None:
    correlator = EventCorrelator()
    correlator.correlate("u", NOTE, 0.0, "e1")

    assert correlator.correlate("v", NOTE, 0.0, "e2") == ("e2", 1)
    assert correlator.correlate("u", NewEvent("Warning", "Other", "it fails"), 0.0, "e3") == (
        "e3",
        1,
    )
    assert correlator.correlate("u", NewEvent("Warning", "ReplicaFailed", "else"), 0.0, "e4") == (
        "e4",
        1,
    )


def test_what_is_gone_is_forgotten() -> None:
    correlator = EventCorrelator()
    correlator.correlate("u", NOTE, 0.0, "e1")
    correlator.correlate("v", NOTE, 0.0, "e2")
    correlator.forget("u")

    assert len(correlator) == 1
    assert correlator.correlate("u", NOTE, 1.0, "e3") == ("e3", 1)


def test_the_memory_has_an_end() -> None:
    correlator = EventCorrelator(remembered=10)
    for number in range(1000):
        correlator.correlate(f"u{number}", NOTE, 0.0, "e")

    assert len(correlator) == 10
