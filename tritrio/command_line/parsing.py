"""Reads a command line by the tables, with help and one sentence for every mistake."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from .._version import __version__
from .option import Option
from .tables import GROUPS, OPTIONS

EXIT_FAILED: Final = 1
"""Any start-up failure, a wrong command line included, or a stop that ran out of time."""

HELP_COLUMNS: Final = 100
_DESCRIPTION: Final = (
    "Serve Triton model repositories over HTTP and gRPC. Options are given as --option VALUE or as "
    "--option=VALUE; a BOOL is true, false, on, off, 1 or 0."
)


class CommandLineParser(argparse.ArgumentParser):
    """Ends with exit code 1 and one sentence, where argparse prints its usage and says 2."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and exit."""
        self.exit(EXIT_FAILED, f"tritrio: {message}\n")

    def given(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return name -> value of the options that are given, lists of those that are repeatable.

        Exits if there is a mistake, or if help is asked for.
        """
        namespace, rest = self.parse_known_args(arguments)
        if rest:
            self.error(_unknown(rest[0]))
        return vars(namespace)


def build_parser() -> CommandLineParser:
    """Return the parser of the server's command line."""
    parser = CommandLineParser(
        prog="tritrio",
        usage="%(prog)s --model-repository DIR [options]",
        description=_DESCRIPTION,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        formatter_class=lambda prog: argparse.HelpFormatter(
            prog, max_help_position=34, width=HELP_COLUMNS
        ),
    )
    parser.add_argument("--version", action="version", version=f"tritrio {__version__}")
    for group in GROUPS:
        add = parser.add_argument_group(group.title).add_argument
        for option in group.options:
            names = [option.name, *([option.also] if option.also else [])]
            more: dict[str, Any] = {"nargs": "?", "const": True} if option.alone else {}
            add(
                *names,
                action="append" if option.repeatable else "store",
                dest=option.name,
                type=option.kind.read,
                metavar=option.kind.shown,
                help=described(option) + _default(option),
                **more,
            )
    return parser


def described(option: Option) -> str:
    """Return what help and the documentation say about an option, its default left out."""
    if option.instead:
        return f"deprecated, use {option.instead}: {option.help}"
    return f"no effect: {option.help}" if option.unused else option.help


def _default(option: Option) -> str:
    return f" (default: {option.default})" if option.default and not option.unused else ""


def _unknown(text: str) -> str:
    name = text.partition("=")[0]
    if not name.startswith("-"):
        return f"expected options alone, got '{text}'"
    names = [*(option.name for option in OPTIONS), "--help", "--version"]
    begun = [each for each in names if each.startswith(name)]  # cut short, as abbreviations are
    near = begun if len(begun) == 1 else difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]}?" if near else "--help lists those there are"
    return f"there is no option '{name}'; {hint}"
