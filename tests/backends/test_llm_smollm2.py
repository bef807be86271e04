"""A real model in its exact build: texts do not depend on the batch around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.builders import source_in
from tests.backends.generating import Generating, open_instance
from tests.support.weights import smollm2

pytestmark = pytest.mark.slow

QUESTIONS = ("Count from 1 to 5.", "Name a colour.", "What is the capital of France?")
STEPS = 9


def test_texts_of_any_length_together_are_as_each_alone(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    for file in smollm2("fp32").iterdir():
        (source.version_directory / file.name).symlink_to(file)
    settings = '{"max_num_seqs": 3, "max_model_len": 128, "eos_token_id": 2}'
    (source.version_directory / "model.json").write_text(settings)
    instance = open_instance(source)
    text = instance.text
    prompts = [
        text.encode(text.render_chat([{"role": "user", "content": question}]))
        for question in QUESTIONS
    ]
    alone = []
    for number, prompt in enumerate(prompts, 10):
        generating = Generating(instance)
        generating.start(number, 0, prompt)
        generating.go_on(number, steps=STEPS - 1)
        alone.append(generating.text(number))
    together = Generating(instance)
    together.start(0, 2, prompts[0], 16)
    together.go_on(0, steps=2)
    together.start(1, 0, prompts[1], 20, 5)
    together.start(2, 1, prompts[2])
    together.go_on(0, 1, 2, steps=STEPS - 3)
    together.go_on(1, 2, steps=2)
    assert [together.text(number) for number in range(3)] == alone
    assert text.decode(alone[0]) == "1. 1\n2. 2"
    assert text.decode(alone[2]).startswith("The capital of France is Paris.")
    instance.unload()
