"""Log probabilities as chats and completions have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..llm_tensors import LlmToken, TokenLogprobs

LOGPROB_LEAST: Final = -9999.0
"""What stands for a probability of 0, whose logarithm JSON cannot say."""


def chat_logprobs(tokens: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """Return the member `logprobs` of a choice of a chat."""
    content = [
        {**_token(each.chosen), "top_logprobs": [_token(token) for token in each.top]}
        for each in tokens
    ]
    return {"content": content, "refusal": None}


def _token(token: LlmToken) -> dict[str, Any]:
    return {"token": token.text, "bytes": list(_utf8(token)), "logprob": _logprob(token)}


def _utf8(token: LlmToken) -> bytes:
    return token.utf8 or token.text.encode()


def _logprob(token: LlmToken) -> float:
    return max(token.logprob, LOGPROB_LEAST)


def completion_logprobs(tokens: Sequence[TokenLogprobs], offset: int) -> tuple[dict[str, Any], int]:
    """Return the member `logprobs` of a choice, and how many characters begin up to its end.

    A token that goes on with a character is where the character is.

    Args:
      tokens: Those of the choice, or of this piece of it.
      offset: How many characters begin before them.
    """
    offsets = []
    for each in tokens:
        begins = [byte & 0xC0 != 0x80 for byte in _utf8(each.chosen)]
        goes_on = offset > 0 and begins[:1] == [False]
        offsets.append(offset - goes_on)
        offset += sum(begins)
    document = {
        "tokens": [each.chosen.text for each in tokens],
        "token_logprobs": [_logprob(each.chosen) for each in tokens],
        "top_logprobs": [
            {token.text: _logprob(token) for token in (*each.top, each.chosen)} for each in tokens
        ],
        "text_offset": offsets,
    }
    return document, offset
