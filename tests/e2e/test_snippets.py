"""Runs what the READMEs show, against a real server, and compares what they say comes out.

Fences: `sh` and `python` are run, and the `text` or `json` fence behind one is its output;
`console` is for what installs or starts something, and `text` without a snippet for logs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.pages import write_files
from tests.support.server_process import ROOT, ServerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("repo_examples/**/README.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# \w+\.py\n")
"""How a fence begins that is a file; see `pages`."""
LANGUAGES = {"sh", "python", "text", "json", "console"}
LIMIT_S = 60


@dataclass(frozen=True)
class Snippet:
    language: str
    code: str
    output: str | None


def snippets() -> list[tuple[str, Snippet]]:
    found = []
    for page in PAGES:
        fences = FENCE.findall(page.read_text())
        for number, (language, code) in enumerate(fences):
            if language not in {"sh", "python"} or FILE.match(code):
                continue
            follower = fences[number + 1] if number + 1 < len(fences) else ("", "")
            output = follower[1] if follower[0] in {"text", "json"} else None
            name = f"{page.parent.name if page.parent != ROOT else 'root'}-{number}"
            found.append((name, Snippet(language, code, output)))
    return found


SNIPPETS = dict(snippets())


def test_every_fence_says_what_it_is() -> None:
    languages = {fence[0] for page in PAGES for fence in FENCE.findall(page.read_text())}
    assert languages <= LANGUAGES
    assert len(SNIPPETS) >= 10


def addressed(code: str, server: ServerProcess) -> str:
    """The snippet for this server and this interpreter; nothing else is changed."""
    code = code.replace("localhost:8000", server.http_url).replace(
        "localhost:8001", server.grpc_url
    )
    code = code.replace(".venv/bin/python", sys.executable)
    asking = r"(\S+/(?:identify|compare|stream|read)\.py)(?! --request)(?=[ \n])"
    return re.sub(asking, rf"\1 --url {server.http_url}", code)


def test_the_function_of_the_readme_batches_as_its_test_says(tmp_path: Path) -> None:
    assert list(write_files("../README.md", tmp_path)) == ["app.py", "test_app.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_app.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize("name", SNIPPETS)
def test_snippet_prints_what_its_page_says(examples: ServerProcess, name: str) -> None:
    snippet = SNIPPETS[name]
    if "curl" in snippet.code and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    code = addressed(snippet.code, examples)
    program = ["bash", "-c"] if snippet.language == "sh" else [sys.executable, "-c"]
    done = subprocess.run(
        [*program, code], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert snippet.output is not None, f"no output is shown; it is:\n{done.stdout}"
    assert done.stdout.strip() == snippet.output.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
