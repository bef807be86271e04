"""The program: a command line in, a server, an exit code out."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

import trio

from .command_line.assembly import parse_command_line
from .command_line.parsing import EXIT_FAILED
from .logs import Logs
from .server import StartError, serve_until_signal

EXIT_OK = 0

_log = logging.getLogger("tritrio")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server; returns its exit code."""
    _open_standard_descriptors()
    command = parse_command_line(sys.argv[1:] if arguments is None else arguments, os.environ)
    options = command.options
    logs = Logs(options.log)
    try:
        with ExitStack() as stack:
            try:
                stack.enter_context(logs.written())
            except OSError as error:
                raise StartError(
                    f"--log-file: expected a file that can be written, got '{options.log.file}': "
                    f"{error.strerror}"
                ) from None
            for warning in command.warnings:
                _log.warning("%s", warning)
            in_time = trio.run(
                serve_until_signal, options, logs, restrict_keyboard_interrupt_to_checkpoints=True
            )
    except StartError as error:
        print(f"tritrio: {error}", file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK if in_time else EXIT_FAILED


def _open_standard_descriptors() -> None:
    """Have those lead nowhere that the caller has closed.

    Else the next sockets would get their numbers, and what libraries print would go to clients.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
