"""What keeps requests to OpenAI's API out before anybody looks at them, in its shape."""

from __future__ import annotations

from typing import Final, final

from ..http_request import HttpRequest
from ..restricted_apis import DROPPED_BODY_BYTES_MAX, RestrictedRoutes
from .api_keys import ApiKeys
from .errors import OpenAiError

PREFIX: Final = b"/v1/"
"""What the paths of the API begin with."""


@final
class Gate:
    """Refuses requests without a key, and those that are too large.

    Args:
      input_bytes_max: Most bytes of a body.
      keys: The keys of clients; None lets everybody in.
      restricted: The calls that need the header of `--http-restricted-api`; None for none. Clients
        with keys have no such header: whoever gives keys gives none of these.
    """

    def __init__(
        self,
        *,
        input_bytes_max: int,
        keys: ApiKeys | None = None,
        restricted: RestrictedRoutes | None = None,
    ) -> None:
        self._input_bytes_max = input_bytes_max
        self._keys = keys
        self._restricted = restricted

    def refusal(self, request: HttpRequest) -> OpenAiError | None:
        """Return why a request is refused, or None; its verb does not matter."""
        if self._keys is not None:
            refusal = self._keys.refusal(request)
            if refusal is not None:
                return refusal
        if self._restricted is not None:
            sentence = self._restricted.refusal(request)
            if sentence is not None:
                return OpenAiError(403, sentence, code="restricted_api")
        return self._refusal_of_size(len(request.body))

    def refusal_of_body(self, request: HttpRequest) -> OpenAiError | None:
        """Return why a request is refused before its body is sent, or None to receive it."""
        size = request.content_length
        if size is None:
            announced = b"transfer-encoding" in request.headers
        else:
            announced = size > DROPPED_BODY_BYTES_MAX
        too_large = self._refusal_of_size(size or 0)
        refusal = self.refusal(request) if announced or too_large else None
        return refusal or too_large

    def _refusal_of_size(self, size: int) -> OpenAiError | None:
        if size <= self._input_bytes_max:
            return None
        return OpenAiError(
            413,
            f"a request may have {self._input_bytes_max} bytes (--http-max-input-size), got {size}",
            code="request_too_large",
        )
