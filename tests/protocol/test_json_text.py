"""The literals beyond JSON that requests may hold."""

from __future__ import annotations

import math

import pytest

from tritrio.protocol.errors import RequestError
from tritrio.protocol.json_text import parse_json


def test_infinity_may_be_written_short_but_not_in_a_string() -> None:
    text = rb'{"Inf": [Inf, -Inf, Infinity, NaN], "b": "Inf \" Inf"}'
    document = parse_json(text, "the request")
    assert list(document) == ["Inf", "b"]
    assert document["Inf"][:3] == [math.inf, -math.inf, math.inf]
    assert math.isnan(document["Inf"][3])
    assert document["b"] == 'Inf " Inf'


@pytest.mark.parametrize("text", [b"[Info]", b"[xInf]", b"[Inf Inf]", b'["Inf]'])
def test_words_that_begin_or_end_like_infinity_are_refused(text: bytes) -> None:
    with pytest.raises(RequestError):
        parse_json(text, "the request")
