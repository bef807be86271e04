"""`python -m tritrio`, the program: the server, or with `chat` in front a client of one."""

import sys


def main() -> int:
    """Run what the command line asks for, and import no more than that; returns the exit code."""
    if sys.argv[1:2] == ["chat"]:
        from .chat.program import main as chat  # noqa: PLC0415

        return chat(sys.argv[2:])
    from .cli import main as serve  # noqa: PLC0415

    return serve()


if __name__ == "__main__":
    sys.exit(main())
