"""What an option of the command line is."""

from __future__ import annotations

from dataclasses import dataclass

from .kinds import Kind


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as the tables have it.

    Attributes:
      name: With its dashes.
      kind: What value it takes.
      default: What it is if it is not given, as it would be given; "" where that is nothing.
      help: What it does, in a phrase; of an option without effect, why it has none.
      field: The field of `ServerOptions` that it fills, with a dot before a field of that; "" where
        more than one option decides.
      also: Another name for it.
      repeatable: Whether it may be given several times, and all count.
      alone: Whether it may stand without a value, for true.
      unused: Whether it has no effect.
      instead: The option that replaces it, if it is deprecated.
    """

    name: str
    kind: Kind
    default: str
    help: str
    field: str = ""
    also: str = ""
    repeatable: bool = False
    alone: bool = False
    unused: bool = False
    instead: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Options that belong together, under the title that help has for them."""

    title: str
    options: tuple[Option, ...]
