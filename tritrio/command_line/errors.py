"""What is wrong with a command line as a whole."""

from __future__ import annotations


class CommandLineError(Exception):
    """Options do not fit each other; the message is for whoever typed them."""
