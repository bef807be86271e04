"""What SmolLM2 generates does not depend on who else is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.backends.builders import source_in
from tests.backends.company import Company, Part
from tests.backends.generating import open_instance
from tests.support.weights import smollm2
from tritrio.backends.llm.executor import LlmInstance
from tritrio.backends.llm.steps import Prefill, StepPlan
from tritrio.memory.kv_slots import KV_BLOCK_TOKENS
from tritrio.protocol.sampling_params import SamplingParams

pytestmark = pytest.mark.slow

ROWS = 8
MODEL_LEN = 256
LAYERS, KV_HEADS, HEAD_SIZE = 30, 3, 64
SYSTEM = (
    "You are a patient librarian in a small town by the sea. You know every book in your library, "
    "you answer in whole sentences, and you never forget to say where a book stands."
)
STORY = (
    "The lighthouse keeper counted the steps every evening, one hundred and twelve of them, and "
    "every evening the lamp was lit before the last ship had passed the rocks. In the winter of "
    "that year, however, the oil did not come, and he began to "
)
Alone = Callable[[Part], list[int]]


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlmInstance]:
    weights = smollm2("fp32")
    source = source_in(tmp_path_factory.mktemp("smollm2"))
    for name in ("model.onnx", "tokenizer.json", "chat_template.jinja"):
        (source.version_directory / name).symlink_to(weights / name)
    settings = {"max_num_seqs": ROWS, "max_model_len": MODEL_LEN, "intra_op_num_threads": 2}
    (source.version_directory / "model.json").write_text(json.dumps(settings))
    instance = open_instance(source)
    yield instance
    instance.unload()


@pytest.fixture(scope="module")
def alone(instance: LlmInstance) -> Alone:
    """What a part gives with nobody else there, its prompt read as a whole."""

    limits = replace(instance.limits, step_tokens=MODEL_LEN, prefix_caching=False)
    texts: dict[object, list[int]] = {}

    def alone(part: Part) -> list[int]:
        key = part.prompt, part.params.temperature, part.params.max_tokens
        if key not in texts:
            by_itself = replace(part, behind=None, rests_at=None, leaves_at=None)
            (texts[key],) = Company(instance, limits, [by_itself]).play()
            assert len(texts[key]) == part.params.max_tokens
        return texts[key]

    return alone


@pytest.fixture(scope="module")
def parts(instance: LlmInstance) -> list[Part]:
    """Prompts of 1 to 110 tokens, four of them with the same beginning; two texts are random."""

    def part(prompt: str, tokens: int, *, temperature: float = 0.0, **more: Any) -> Part:
        return Part(
            prompt=tuple(instance.text.encode(prompt)),
            params=SamplingParams(
                max_tokens=tokens, temperature=temperature, top_p=0.9, ignore_eos=True
            ),
            **more,
        )

    def chat(question: str) -> str:
        messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question},
        ]
        return instance.text.render_chat(messages)

    random = {"temperature": 0.8, "seed": 42}
    return [
        part(chat("Which book do you like best?"), 30),
        part("Once", 28, rests_at=5),
        part(chat("Is there a book about whales?"), 16, behind=(0, 1), leaves_at=9),
        part(STORY, 18, behind=(1, 2), **random),
        part(chat("Where do I find poems about the sea and the ships that sail it?"), 20,
             behind=(0, 2)),
        part("def add(a, b):\n    return", 14, behind=(2, 1)),
        part(chat("What is the oldest one?"), 22, behind=(3, 1), **random),
        part("The capital of France is", 24, behind=(5, 1)),
        part(STORY + STORY, 12, behind=(7, 2)),
    ]  # fmt: skip


def check(company: Company, alone: Alone, parts: list[Part]) -> None:
    """Each text is the one that is generated alone, as far as anybody stayed to read it."""
    for text, part in zip(company.play(), parts, strict=True):
        assert text == alone(part)[: part.leaves_at]


@pytest.mark.parametrize("prompt", [0, 7])
def test_a_text_is_what_the_graph_says_when_all_of_it_is_read_anew_for_each_token(
    instance: LlmInstance, parts: list[Part], alone: Alone, prompt: int
) -> None:
    part = replace(parts[prompt], params=replace(parts[prompt].params, temperature=0.0))
    session = ort.InferenceSession(str(smollm2("fp32") / "model.onnx"))
    nothing = np.zeros((1, KV_HEADS, 0, HEAD_SIZE), np.float32)
    past = {
        f"past_key_values.{layer}.{kind}": nothing
        for layer in range(LAYERS)
        for kind in ("key", "value")
    }
    tokens = list(part.prompt)
    for _ in range(8):
        counts = {
            "input_ids": np.array([tokens], np.int64),
            "seqlens_k": np.array([len(tokens) - 1], np.int32),
            "total_seq_len": np.array([len(tokens)], np.int32),
        }
        (logits,) = session.run(["logits"], {**past, **counts})
        tokens.append(int(logits[0].argmax()))
    assert alone(part)[:8] == tokens[len(part.prompt) :]


@pytest.mark.parametrize(("count", "step_tokens"), [(3, ROWS), (9, 64), (9, 1000)])
def test_texts_of_several_are_those_of_each_alone(
    instance: LlmInstance, parts: list[Part], alone: Alone, count: int, step_tokens: int
) -> None:
    limits = replace(instance.limits, step_tokens=step_tokens, prefix_caching=False)
    company = Company(instance, limits, parts[:count])
    check(company, alone, parts[:count])
    assert max(len(plan.decodes) for plan in company.plans) == min(count, ROWS)
    assert any(plan.swaps for plan in company.plans)


def test_texts_are_the_same_where_beginnings_are_shared(
    instance: LlmInstance, parts: list[Part], alone: Alone
) -> None:
    noise = parts[3].prompt  # lest what tests before left in the rows be what belongs there
    fills = [Prefill(-1, row, noise, 0, samples=False) for row in range(ROWS)]
    instance.step(StepPlan(prefills=tuple(fills)))
    company = Company(instance, instance.limits, parts)
    check(company, alone, parts)
    assert sum(len(plan.copies) for plan in company.plans) >= 3
    assert sum(copy.tokens for plan in company.plans for copy in plan.copies) > 3 * 40


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_texts_are_the_same_where_some_give_way_to_others(
    instance: LlmInstance, parts: list[Part], alone: Alone, prefix_caching: bool
) -> None:
    budget_bytes = 7 * KV_BLOCK_TOKENS * instance.limits.kv_bytes_per_token
    limits = replace(instance.limits, prefix_caching=prefix_caching, kv_budget_bytes=budget_bytes)
    greedy = SamplingParams(temperature=0, max_tokens=34, ignore_eos=True)
    random = replace(greedy, temperature=0.8, top_p=0.9)
    few = [
        Part(prompt=parts[number].prompt, params=params, seed=42)
        for number, params in [(1, greedy), (5, random), (7, greedy), (7, random)]
    ]
    company = Company(instance, limits, few)
    check(company, alone, few)
    assert company.planner.preemptions >= 2
