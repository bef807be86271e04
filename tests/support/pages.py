"""What the pages of docs/ show: files, each in a fence that begins with its name."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.server_process import ROOT

_FENCE = re.compile(
    r"^```python\n# (\w+\.py)\n(.*?)^```$\n*(?:^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)


def write_files(page: str, directory: Path) -> dict[str, str]:
    """Write the files of a page; the output that the page shows for each."""
    files = _FENCE.findall((ROOT / "docs" / page).read_text())
    for name, code, _ in files:
        (directory / name).write_text(code)
    return {name: output for name, _, output in files}
