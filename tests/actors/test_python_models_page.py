"""The models in docs/python-models.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from tests.support.calling import CONFIG, ECHO, calling_core, write_caller
from tritrio.actors.metrics_collector import ModelCollector, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python-models.md"
MODEL = re.compile(r"^```python\n# (\w+)/1/model\.py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


async def test_every_model_of_the_page_runs(tmp_path: Path) -> None:
    models = dict(MODEL.findall(PAGE.read_text()))
    assert set(models) == {"shout", "first", "both", "words", "letters"}
    for name, code in models.items():
        directory = tmp_path / name / "1"
        directory.mkdir(parents=True)
        (directory / "model.py").write_text(code)
        (tmp_path / name / "config.pbtxt").write_text(CONFIG + DECOUPLED * (name == "letters"))
    write_caller(tmp_path, "echo", ECHO)
    registry = CollectorRegistry()
    async with calling_core(tmp_path) as core:
        registry.register(ModelCollector(list, custom=core.core.custom_metrics))
        assert await core.ask("shout", "hello") == "HELLO"
        assert await core.ask("first", "hello") == "h"
        assert await core.ask("both", "hello") == "hello HELLO"
        assert await core.ask("words", "a few words") == "a few words"
        text = render(registry).decode()
        assert 'words{model="words"} 3.0' in text
        assert 'sizes_bucket{le="100"} 1.0' in text
