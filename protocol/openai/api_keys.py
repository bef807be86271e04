"""Keys of clients: what may call OpenAI's API here."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final, final

from ..errors import invalid_argument
from ..http_request import HttpRequest
from .errors import OpenAiError

KEYS_MAX: Final = 1024
"""Keys of one server; a request is compared with each."""
KEY_CHARACTERS_MAX: Final = 1024
"""Characters of a key; headers have room for more, but a longer one is a file of another kind."""

REFUSED_CODE: Final = "invalid_api_key"


@final
class ApiKeys:
    """The keys of one server, of which only digests are kept.

    Args:
      keys: At least one; printable ASCII without blanks. Messages do not show them.

    Raises:
      RequestError: INVALID_ARG; there is none, there are too many, or one cannot be sent.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        distinct = set(keys)
        if not 1 <= len(distinct) <= KEYS_MAX:
            raise invalid_argument(f"expected 1 to {KEYS_MAX} API keys, got {len(distinct)}")
        for key in distinct:
            if not key.isascii() or not key.isprintable() or " " in key:
                raise invalid_argument(
                    "expected API keys of printable ASCII without blanks, got another"
                )
            if not 1 <= len(key) <= KEY_CHARACTERS_MAX:
                raise invalid_argument(
                    f"expected API keys of 1 to {KEY_CHARACTERS_MAX} characters, got one of "
                    f"{len(key)}"
                )
        self._digests = [sha256(key.encode()).digest() for key in distinct]

    def __repr__(self) -> str:
        return f"<ApiKeys {len(self._digests)}>"

    def refusal(self, request: HttpRequest) -> OpenAiError | None:
        """Return why a request is refused, or None.

        How long this takes says nothing about the keys: each is compared, as a digest.
        """
        given = [value for name, value in request.raw_headers if name.lower() == b"authorization"]
        if not given:
            return OpenAiError(
                401,
                "expected an API key in the header 'Authorization: Bearer KEY', got no such header",
                code=REFUSED_CODE,
            )
        scheme, _, key = given[0].partition(b" ")
        digest = sha256(key.strip()).digest()
        known = False
        for each in self._digests:
            known |= compare_digest(digest, each)
        if known and scheme.lower() == b"bearer" and len(given) == 1:
            return None
        return OpenAiError(
            401,
            "expected one header 'Authorization: Bearer KEY' with a key of this server, got "
            "another",
            code=REFUSED_CODE,
        )


def read_keys(text: str) -> tuple[str, ...]:
    """Return the keys of a file, one a line; blank lines and those that begin with # count not."""
    lines = [line.strip() for line in text.splitlines()]
    return tuple(line for line in lines if line and not line.startswith("#"))
