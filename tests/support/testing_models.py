"""The examples of the page about the test backends."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.server_process import ROOT
from tritrio.protocol.config_rules import ConfigContext, normalise
from tritrio.protocol.config_text import parse_model_config
from tritrio.protocol.config_validation import validate
from tritrio.protocol.pb.inference import ModelConfig

PAGE = ROOT / "docs" / "test-backends.md"
FENCE = re.compile(r"^```text\n# (\w+)/config\.pbtxt\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = dict(FENCE.findall(PAGE.read_text()))
"""Model name -> its configuration."""


def example_config(name: str) -> ModelConfig:
    """The final configuration of an example."""
    context = ConfigContext(preferred_count=1)
    config = parse_model_config(EXAMPLES[name].encode(), file=name)
    config.name = name
    config = normalise(config, context=context)
    validate(config, context=context)
    return config


def write_examples(repository: Path) -> Path:
    """Write all examples into a model repository."""
    for name, text in EXAMPLES.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    return repository
