"""`python -m tritrio chat`: questions in, answers out as they come, Ctrl-C stops an answer."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import Final, NoReturn, TextIO, TypeAlias

from .client import KEY_VARIABLE, ChatClient
from .conversation import Conversation
from .events import TOO_LONG_CODE, ChatError, printable

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
"""As shells say of what SIGINT ended."""

PROMPT: Final = "> "
STOPPED: Final = "(stopped)"
CUT: Final = "the answer was cut: it has as many tokens as it may have"
COMMANDS: Final = (
    "/reset begins anew, /quit leaves, /help says this; a question that begins with / has a blank "
    "in front"
)
_EPILOG: Final = (
    f"Ctrl-C stops an answer, Ctrl-C or Ctrl-D at the prompt leaves; {COMMANDS}. With input that "
    "is no terminal each line is a question, and answers alone are printed."
)

_Answer: TypeAlias = Callable[[], Generator[str, None, bool]]


class _Parser(argparse.ArgumentParser):
    """Ends with exit code 1 and one sentence, as the server's does."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_FAILED, f"tritrio chat: {message}\n")


def main(arguments: Sequence[str]) -> int:
    """Chat until there are no more questions; returns the exit code.

    Args:
      arguments: What stands behind `chat` in the command line.
    """
    given = _parser().parse_args(arguments)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return _chat(given)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ChatError as error:
        _say(error)
        return EXIT_FAILED
    except BrokenPipeError:  # nobody reads the answers any more
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tritrio chat",
        description="Chat with a model of a server that speaks OpenAI's API.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--url", default="http://localhost:8000", help="the server (default: %(default)s)")
    add("--model", metavar="NAME", help="the model (default: the first that can chat)")
    add("--api-key", metavar="KEY", help=f"the key the server asks for (default: ${KEY_VARIABLE})")
    add("--system", metavar="TEXT", default="", help="what the model is told beforehand")
    add("--temperature", metavar="T", type=float, help="0 for the most likely answer")
    add("--max-tokens", metavar="N", type=int, help="most tokens of an answer")
    return parser


def _chat(given: argparse.Namespace) -> int:
    key = given.api_key
    client = ChatClient(given.url, os.environ.get(KEY_VARIABLE, "") if key is None else key)
    model = given.model or client.chat_model()
    options = {
        name: value
        for name, value in (("temperature", given.temperature), ("max_tokens", given.max_tokens))
        if value is not None
    }
    conversation = Conversation(given.system)

    def answer() -> Generator[str, None, bool]:
        return client.answer(model, conversation.messages, options)

    if sys.stdin.isatty() and sys.stdout.isatty():
        sys.stdout.write(
            f"Chatting with {printable(model)}. Ctrl-C stops an answer, Ctrl-D leaves, /help says "
            "more.\n"
        )
        return _interactive(conversation, answer)
    for line in sys.stdin:
        if line.strip() and _turn(conversation, line.strip(), answer, sys.stdout):
            _say(CUT)
    return EXIT_OK


def _interactive(conversation: Conversation, answer: _Answer) -> int:
    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - gives `input` its line editing
    while True:
        try:
            given = input(PROMPT)
        except (EOFError, KeyboardInterrupt):
            sys.stdout.write("\n")
            return EXIT_OK
        line = given.strip()
        if line == "/quit":
            return EXIT_OK
        if line == "/reset":
            conversation.reset()
        elif given.startswith("/"):
            sys.stdout.write(f"{COMMANDS}\n")
        elif line:
            try:
                if _turn(conversation, line, answer, sys.stdout):
                    sys.stdout.write(f"({CUT})\n")
            except KeyboardInterrupt:
                sys.stdout.write(f"{STOPPED}\n")
            except ChatError as error:
                too_long = error.code == TOO_LONG_CODE
                _say(f"{error}; /reset begins anew" if too_long else error)


def _turn(conversation: Conversation, question: str, answer: _Answer, out: TextIO) -> bool:
    """Ask a question and print its answer as it comes; return whether it was cut."""
    pieces: list[str] = []
    conversation.ask(question)
    try:
        with closing(answer()) as coming:
            while True:
                try:
                    piece = next(coming)
                except StopIteration as end:
                    return bool(end.value)
                pieces.append(piece)
                out.write(printable(piece) if out.isatty() else piece)
                out.flush()
    finally:
        conversation.answered("".join(pieces))
        if pieces or not isinstance(sys.exc_info()[1], ChatError):
            out.write("\n")
            out.flush()


def _say(what: ChatError | str) -> None:
    sys.stderr.write(f"tritrio chat: {what}\n")
    sys.stderr.flush()
