"""Who looks again for room for a response, in place of waiting, sees what waiting threads see."""

from __future__ import annotations

import pytest

from tritrio.actors import _response_gate
from tritrio.actors._response_gate import (
    RESPONSES_WAITING_MAX,
    STALLED_MAX_S,
    ResponseGate,
    StalledError,
)


def full_gate() -> ResponseGate:
    gate = ResponseGate()
    for _ in range(RESPONSES_WAITING_MAX):
        assert gate.has_room()
        assert gate.enter()
    return gate


def test_there_is_room_again_once_a_response_was_received() -> None:
    gate = full_gate()
    assert not gate.was_held_back()
    assert [gate.has_room(), gate.has_room(), gate.was_held_back()] == [False, False, True]
    gate.leave()
    assert [gate.has_room(), gate.enter(), gate.has_room()] == [True, True, False]
    gate.open()
    assert [gate.has_room(), gate.enter()] == [True, False]


def test_a_client_that_takes_no_response_for_long_is_given_up_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = [10**9]
    monkeypatch.setattr(_response_gate, "perf_counter_ns", lambda: now_ns[0])
    gate = full_gate()
    assert not gate.has_room()
    now_ns[0] += round(STALLED_MAX_S * 1e9) - 1
    assert not gate.has_room()
    gate.leave()
    assert gate.enter() if gate.has_room() else False
    assert not gate.has_room()
    now_ns[0] += round(STALLED_MAX_S * 1e9)
    assert gate.has_room()
    with pytest.raises(StalledError, match="has taken no response for 15 s"):
        gate.enter()
