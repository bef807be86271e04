"""Python classes that generate text: their face, and a real one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.backends.builders import source_in
from tests.backends.generating import Generating, open_instance
from tests.backends.tiny_causal import write_tiny
from tests.support.g2p import END, WORDS, write_g2p
from tritrio.backends.base import ModelSource
from tritrio.backends.llm.steps import Decode, Prefill, RowCopy, StepPlan
from tritrio.protocol.errors import RequestError

COUNTING = """
import numpy as np

class TritonGenerationModel:
    vocabulary_size = 64
    context_length = 32
    kv_bytes_per_token = 8
    log = []

    def initialize(self, args):
        self.log.append(("initialize", args["model_name"], args["model_version"]))

    def prefill(self, row, tokens, past):
        self.log.append(("prefill", row, tokens.tolist(), past))
        return self.after(tokens[-1])

    def step(self, rows, tokens, past):
        self.log.append(("step", rows.tolist(), tokens.tolist(), past.tolist()))
        return [self.after(token) for token in tokens]

    def after(self, token):
        logits = np.zeros(64)
        logits[token + 1] = 1
        return logits

    def copy(self, source, target, tokens):
        self.log.append(("copy", source, target, tokens))

    def finalize(self):
        self.log.append(("finalize",))
"""
"""A model that counts on from the last token, and writes down what it is asked."""


def write_python(
    directory: Path, code: str, settings: str = '{"model": "model.py"}'
) -> ModelSource:
    source = write_tiny(directory, settings=settings)
    (source.version_directory / "model.py").write_text(code)
    return source


def test_a_class_is_asked_what_a_step_is_made_of(tmp_path: Path) -> None:
    instance = open_instance(write_python(tmp_path, COUNTING))
    log = instance._model._model.log  # type: ignore[union-attr]
    assert instance.limits.kv_bytes_per_token == 8
    assert instance.limits.tokens_per_row == 32
    assert instance.limits.kv_budget_bytes == 8 * 32 * 8
    assert instance.limits.prefix_caching
    assert not instance.limits.contiguous
    generating = Generating(instance)
    generating.start(0, 5, [7, 8, 9], 2)
    joins = generating.join(1, 2, [7, 8, 20], cached=2)
    copies = (RowCopy(5, 2, 2),)
    generating.step(joins=joins, copies=copies, prefills=(generating.prefill(1),))
    generating.go_on(0, 1)
    assert generating.text(0) == [10, 11]
    assert generating.text(1) == [21, 22]
    instance.unload()
    assert log == [
        ("initialize", "m", "1"),
        ("prefill", 5, [7, 8], 0),
        ("prefill", 5, [9], 2),
        ("copy", 5, 2, 2),
        ("prefill", 2, [20], 2),
        ("step", [2, 5], [21, 10], [3, 3]),
        ("finalize",),
    ]


def test_without_copy_nothing_is_shared_and_the_class_may_have_another_name(tmp_path: Path) -> None:
    code = COUNTING.replace("def copy", "def other").replace("TritonGenerationModel", "Mine")
    settings = '{"model": "model.py", "model_class": "Mine"}'
    instance = open_instance(write_python(tmp_path, code, settings))
    assert not instance.limits.prefix_caching


def test_numbers_may_be_numpys_and_no_copy_is_none(tmp_path: Path) -> None:
    code = COUNTING.replace("size = 64", "size = np.int64(64)").replace("def copy", "def other")
    limits = open_instance(write_python(tmp_path, f"{code}\n    copy = None\n")).limits
    assert type(limits.vocabulary_size) is int
    assert not limits.prefix_caching


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class Triton", "class Other", "expected a class TritonGenerationModel in model.py"),
        ("def step", "def steps", "expected a method 'step' in TritonGenerationModel, got none"),
        ("size = 64", "size = 0", "'vocabulary_size', a whole number from 1 to .*, got 0"),
        ("vocabulary_size", "size", "'vocabulary_size', .*, got null"),
        ("token = 8", "token = 0.5", "'kv_bytes_per_token', .*, got 0.5"),
        ("context_length", "context", "expected max_model_len in the settings"),
        ('args["model_name"]', 'args["x"]', "initialize raised KeyError: 'x'"),
        ("import numpy", "import numpyy", "importing model.py raised ModuleNotFoundError"),
    ],
)
def test_a_class_that_does_not_fit_is_refused(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(RequestError, match=f"^model 'm'.*{message}"):
        open_instance(write_python(tmp_path, COUNTING.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return self.after(tokens[-1])", "return [0.0] * 9", r"'prefill' .* \[64\], got shape"),
        ("return self.after(tokens[-1])", "return 'no'", "got str"),
        ("return self.after(tokens[-1])", "return None", "got NoneType"),
        ("return self.after(tokens[-1])", "return 1 / 0", "prefill raised ZeroDivisionError: .* "),
    ],
)
def test_a_class_that_fails_in_a_step_is_told_what_was_expected(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    instance = open_instance(write_python(tmp_path, COUNTING.replace(old, new)))
    result = instance.step(StepPlan(prefills=(Prefill(3, 0, (1, 2), 0, samples=False),)))
    assert re.match(f"model 'm'.*{message}", result.faults[3].reason)


def test_faults_are_logged_with_their_place_ever_more_rarely(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = COUNTING.replace("return self.after(tokens[-1])", "return 1 / 0")
    code = code.replace("return [self.after", "raise OSError('lost')\n        return [self.after")
    instance = open_instance(write_python(tmp_path, code))
    caplog.clear()
    read = StepPlan(prefills=(Prefill(3, 0, (1, 2), 0, samples=False),))
    for _ in range(3):
        instance.step(read)
    with pytest.raises(RequestError, match="step raised OSError: lost"):
        instance.step(StepPlan(decodes=(Decode(3, 0, 2, 2),)))
    read_fault = "prefill raised ZeroDivisionError: division by zero (at 1/model.py:15 in prefill)"
    step_fault = "step raised OSError: lost (at 1/model.py:19 in step)"
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("ERROR", f"model 'm' version 1: {fault} (faults so far: {count})")
        for fault, count in ((read_fault, 1), (read_fault, 2), (step_fault, 4))
    ]


def test_a_real_model_says_how_words_are_spoken(tmp_path: Path) -> None:
    write_g2p(tmp_path, name="m")
    instance = open_instance(source_in(tmp_path))
    generating = Generating(instance)
    for number, word in enumerate(WORDS):
        generating.start(number, number, instance.text.encode(word), 3)
    going = set(range(len(WORDS)))
    while going:
        generating.go_on(*going)
        going = {each for each in going if generating.tokens[each][-1] != END}
    spoken = [instance.text.decode(generating.text(number)) for number in range(len(WORDS))]
    assert spoken == list(WORDS.values())
    assert instance.limits.end_tokens == {END}
