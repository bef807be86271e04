"""docs/command-line.md has what the parser has."""

from __future__ import annotations

from pathlib import Path

from tritrio.command_line.option import Group
from tritrio.command_line.parsing import described
from tritrio.command_line.tables import GROUPS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"


def section(group: Group) -> str:
    """The part of the page about one group, as it has to be."""
    lines = [f"## {group.title[0].upper()}{group.title[1:]}", ""]
    lines += ["| Option | Value | Default | What it does |", "|---|---|---|---|"]
    for option in group.options:
        names = ", ".join(f"`{name}`" for name in (option.name, option.also) if name)
        value = option.kind.shown.replace("|", "\\|")
        default = f"`{option.default}`" if option.default else ""
        lines.append(f"| {names} | {value} | {default} | {described(option)} |")
    return "\n".join(lines)


def test_the_page_has_every_option_as_the_parser_has_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [group.title for group in GROUPS if section(group) not in page] == []
    assert page.count("\n| `--") == sum(len(group.options) for group in GROUPS)
