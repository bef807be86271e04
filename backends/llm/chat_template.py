"""Chat templates: make the prompt of a conversation, in the form a model was trained on.

Templates are the operator's files, written for Hugging Face's `apply_chat_template`: they expect
its filters, functions and tags. What clients send are their variables.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ...protocol.errors import PromptTooLongError, invalid_argument
from ...protocol.wording import quoted

PROMPT_MAX_CHARACTERS: Final = 16 * 1024 * 1024
"""Most that a template may write; more than any model reads."""
_OURS: Final = ("messages", "tools", "add_generation_prompt")
"""What no variable of a client may hide."""
_TEMPLATE_FAULTS: Final = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What the code of a template can raise about its variables."""


class ChatTemplate:
    """A compiled chat template; callable from any thread.

    It runs in a sandbox: it sees no attributes that begin with an underscore, changes none of its
    variables, and no range has more than 100,000 numbers. A template that loops for long without
    writing anything cannot be stopped.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC).astimezone(),
    ) -> None:
        """Compile a template.

        Args:
          source: Its text.
          name: Of the file it is from, for messages.
          special_tokens: "bos_token", "eos_token" and others -> that token as text.
          now: Gives the date, for templates that write it.

        Raises:
          RequestError: INVALID_ARG; its syntax is wrong.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise invalid_argument(
                f"{name}: line {error.lineno} of the chat template is wrong: {error.message}"
            ) from error
        except (TemplateError, RecursionError) as error:
            raise invalid_argument(f"{name}: the chat template is wrong: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any],
    ) -> str:
        """Return the prompt of a conversation; arguments as `Text.render_chat`.

        Raises:
          RequestError: INVALID_ARG; the template refuses the messages.
        """
        for hidden in _OURS:
            if hidden in variables:
                raise invalid_argument(
                    f"expected variables of the chat template other than {quoted(hidden)}, which "
                    "the request itself sets"
                )
        values = {
            **self._special_tokens,
            **variables,
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        pieces: list[str] = []
        room = PROMPT_MAX_CHARACTERS
        try:
            for piece in self._template.generate(values):
                room -= len(piece)
                if room < 0:
                    break
                pieces.append(piece)
        except _TEMPLATE_FAULTS as error:
            raise invalid_argument(
                f"the model's chat template does not take these messages: {quoted(str(error))}"
            ) from error
        if room < 0:
            raise PromptTooLongError(
                f"expected a prompt of at most {PROMPT_MAX_CHARACTERS} characters, got more from "
                "the chat template"
            )
        return "".join(pieces)


class _Generation(Extension):
    """The tag around what the model itself says; it matters in training only."""

    tags = {"generation"}  # noqa: RUF012 - as the base class declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
