"""What clients are told."""

from __future__ import annotations

from tritrio.protocol.errors import ErrorCode, RequestError


def test_a_message_can_be_sent_whatever_text_a_model_gives() -> None:
    error = RequestError(ErrorCode.INTERNAL, "bad \udc80 and \N{SNOWMAN}")
    assert error.message == "bad \\udc80 and \N{SNOWMAN}"
    assert error.message.encode()
    assert str(error) == error.message
