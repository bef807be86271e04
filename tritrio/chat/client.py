"""Asks a server over OpenAI's API; a connection for each question, closed when nobody waits."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final, final
from urllib.parse import urlsplit

from .events import ChatError, answer_text, error_code, error_message, event_data, one_line

CONNECT_MAX_S: Final = 10.0
"""A server in reach takes a connection within a round trip; a lost packet or two are allowed."""

SILENCE_MAX_S: Final = 600.0
"""Between two parts of an answer, in seconds: a long queue may pass, a dead machine is noticed."""

LINE_BYTES_MAX: Final = 2**20
"""Of an event: one part of an answer is a few hundred bytes."""

BODY_BYTES_MAX: Final = 2**20
"""Of an answer that is no stream: a list of models, or an error."""

KEY_VARIABLE: Final = "OPENAI_API_KEY"
"""Where the environment has the key, as for OpenAI's clients."""

NO_MODEL_CODE: Final = "model_not_found"
"""What servers call it that there is no such model, or none that can chat."""

LISTED_MAX: Final = 16
"""Models that a message names: more would hide the sentence."""

CHAT_PATH: Final = "/v1/chat/completions"

ENDPOINTS: Final = "supported_endpoints"
"""Member of a model: the paths of the calls that it can answer, from servers that say so."""


@final
class ChatClient:
    """One server, as a client knows it.

    Args:
      url: Where it is: http://HOST:PORT, perhaps with a path in front of /v1.
      api_key: What it wants to see; "" for nothing.

    Raises:
      ChatError: that is no such URL.
    """

    def __init__(self, url: str, api_key: str = "") -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ChatError(f"expected --url to be http://HOST:PORT, got '{one_line(url)}'")
        if not api_key.isascii() or not api_key.isprintable():
            raise ChatError(
                f"expected the key (--api-key, or {KEY_VARIABLE}) to be of printable ASCII "
                "characters"
            )
        self._url = url
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._path = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def chat_model(self) -> str:
        """Return the first model that can chat, of those that the server lists.

        Of a server that does not say what its models can do, it is the first one.

        Raises:
          ChatError: there is none, or no such answer.
        """
        with self._asked("GET", "/v1/models") as response:
            document = _document(response.read(BODY_BYTES_MAX))
        try:
            models = [(each["id"], each.get(ENDPOINTS)) for each in document["data"]]
        except (AttributeError, KeyError, TypeError):
            models = [(None, None)]
        if not all(isinstance(name, str) for name, _ in models):
            raise ChatError(f"expected a list of models from {self._url}, got none")
        if not models:
            raise ChatError(f"the server at {self._url} has no model to chat with")
        for name, endpoints in models:
            if not isinstance(endpoints, list) or CHAT_PATH in endpoints:
                return str(name)
        listed = ", ".join(name for name, _ in models[:LISTED_MAX])
        more = "" if len(models) <= LISTED_MAX else f" and {len(models) - LISTED_MAX} more"
        raise ChatError(
            f"no model of the server at {self._url} says that it can chat; there are "
            f"{one_line(listed)}{more}, and --model NAME asks one all the same"
        )

    def answer(
        self, model: str, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]
    ) -> Generator[str, None, bool]:
        """Yield the answer of a model as it comes; closing it ends the connection at once.

        It returns whether the answer was cut, as `answer_text`.

        Args:
          model: Its name.
          messages: What was said so far, the question last.
          options: Members of the request that say how to answer.

        Raises:
          ChatError: there is no answer, or no more of it.
        """
        body = {"model": model, "messages": messages, "stream": True, **options}
        with self._asked("POST", CHAT_PATH, body) as response:
            return (yield from answer_text(event_data(_lines(response))))

    @contextmanager
    def _asked(self, method: str, path: str, body: object = None) -> Iterator[HTTPResponse]:
        """Give the response to a request, whose status is 200."""
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_MAX_S)
        response: HTTPResponse | None = None
        try:
            try:
                connection.connect()
            except (OSError, UnicodeError) as error:  # a host's name may be none
                raise ChatError(f"no server answers at {self._url}: {_why(error)}") from None
            connection.sock.settimeout(SILENCE_MAX_S)
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, self._path + path, data, self._headers)
            response = connection.getresponse()
            if response.status != 200:
                document = _document(response.read(BODY_BYTES_MAX))
                said = error_message(document)
                text = f"{self._url} answered {response.status} {one_line(response.reason)}".strip()
                text += f": {said}" if said else ""
                if response.status == HTTPStatus.UNAUTHORIZED:
                    text += f"; the key is that of --api-key, or else of {KEY_VARIABLE}"
                code = error_code(document)
                if code == NO_MODEL_CODE:
                    text += "; --model NAME chooses one"
                raise ChatError(text, code)
            yield response
        except OSError as error:
            raise ChatError(f"the server at {self._url} went away: {_why(error)}") from None
        except HTTPException as error:
            raise ChatError(
                f"the server at {self._url} went away, or speaks no HTTP: {type(error).__name__}"
            ) from None
        finally:
            if response is not None:  # which holds the socket as well
                response.close()
            connection.close()


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    while line := response.readline(LINE_BYTES_MAX):
        if len(line) == LINE_BYTES_MAX:
            raise ChatError(f"expected a part of an answer of less than {LINE_BYTES_MAX} bytes")
        yield line


def _document(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _why(error: OSError | UnicodeError) -> str:
    known = error.strerror if isinstance(error, OSError) else None
    return one_line(known or str(error) or type(error).__name__)
