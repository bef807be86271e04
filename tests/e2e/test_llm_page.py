"""Runs the model that docs/llm.md builds from nothing, under the limits that the page sets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.pages import write_files
from tests.support.server_process import ROOT, ServerProcess, running_server

from .raw_http import ask

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PAGE = (ROOT / "docs" / "llm.md").read_text()
CONFIG = re.search(r"^```text\n# repeat/config.pbtxt\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SETTINGS = re.search(r"^models/repeat/1/model.json +(\{.*\})$", PAGE, re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```$\n+^```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    place = tmp_path_factory.mktemp("page")
    version = place / "models" / "repeat" / "1"
    version.mkdir(parents=True)
    assert list(write_files("llm.md", version)) == ["model.py", "make_tokenizer.py"]
    subprocess.run([sys.executable, "make_tokenizer.py"], cwd=version, check=True, timeout=LIMIT_S)
    assert CONFIG is not None
    assert SETTINGS is not None
    (version.parent / "config.pbtxt").write_text(CONFIG[1])
    (version / "model.json").write_text(SETTINGS[1])
    with running_server(place / "models", place / "log") as server:
        yield server


def test_what_the_page_asks_is_answered_as_it_says(server: ServerProcess) -> None:
    asked = SHELL.findall(PAGE)
    assert len(asked) == 2
    for code, output in asked:
        command = ["bash", "-c", code.replace("localhost:8000", server.http_url)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.stdout.strip() == output.strip(), done.stderr


def test_the_limits_of_the_page_hold_without_batches(server: ServerProcess) -> None:
    answer = json.loads(ask(server.http_port, "GET", "/v2/models/repeat/batching").body)
    (level,) = answer["rules"]["levels"]
    assert level["max_queue_size"] == 32
    assert level["default_timeout_us"] == 10_000_000
    assert level["allow_timeout_override"]
