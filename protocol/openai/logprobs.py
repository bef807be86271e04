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
    utf8 = token.utf8 or token.text.encode()
    return {"token": token.text, "bytes": list(utf8), "logprob": _logprob(token)}


def _logprob(token: LlmToken) -> float:
    return max(token.logprob, LOGPROB_LEAST)


def completion_logprobs(tokens: Sequence[TokenLogprobs], offset: int) -> tuple[dict[str, Any], int]:
    """Return the member `logprobs` of a choice of a completion, and where the next token begins.

    Args:
      tokens: Those of the choice, or of this piece of it.
      offset: Where the first begins in the text, in characters.
    """
    offsets = []
    for each in tokens:
        offsets.append(offset)
        offset += len(each.chosen.text)
    document = {
        "tokens": [each.chosen.text for each in tokens],
        "token_logprobs": [_logprob(each.chosen) for each in tokens],
        "top_logprobs": [
            {token.text: _logprob(token) for token in (*each.top, each.chosen)} for each in tokens
        ],
        "text_offset": offsets,
    }
    return document, offset
