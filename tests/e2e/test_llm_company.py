"""Clients of SmolLM2 get the texts that each of them gets alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import openai
import pytest

from tests.support.server_process import ServerProcess, running_server
from tests.support.weights import smollm2
from tritrio.memory.kv_slots import KV_BLOCK_TOKENS

from .raw_http import ask

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

WAIT_S = 300.0
"""For a machine that is busy with other tests."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    weights = smollm2("fp32")
    place = tmp_path_factory.mktemp("company")
    version = place / "models" / "smollm2" / "1"
    version.mkdir(parents=True)
    for name in ("model.onnx", "tokenizer.json", "chat_template.jinja"):
        (version / name).symlink_to(weights / name)
    (version / "model.json").write_text('{"max_num_seqs": 8, "max_model_len": 256}')
    (version.parent / "config.pbtxt").write_text('backend: "llm"')
    with running_server(place / "models", place / "log") as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log()


@dataclass
class Asker:
    """One client; it comes when another one has so many pieces of its text, and may leave early."""

    prompt: str
    tokens: int
    behind: tuple[int, int] | None = None
    leaves_at: int | None = None
    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 0})


STORY = "The lighthouse keeper counted the steps every evening, one hundred and twelve of them, "
ASKERS = [
    Asker(STORY + "and", 24),
    Asker("Once", 28),
    Asker("def add(a, b):\n    return", 18, behind=(0, 2)),
    Asker(STORY + "but", 16, behind=(0, 3)),
    Asker("The capital of France is", 60, behind=(1, 4), leaves_at=6),
    Asker("Once upon", 20, behind=(1, 5),
          sampling={"temperature": 0.8, "top_p": 0.9, "seed": 42}),
    Asker("Water boils at", 22, behind=(2, 3)),
    Asker("Roses are red, violets are", 14, behind=(4, 5)),
]  # fmt: skip


class Crowd:
    """All clients at once, each on a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._news = threading.Condition()
        self._pieces: dict[int, list[str]] = {number: [] for number in range(len(ASKERS))}

    def ask(self, number: int) -> str:
        asker = ASKERS[number]
        if asker.behind is not None:
            other, pieces = asker.behind
            with self._news:
                assert self._news.wait_for(lambda: len(self._pieces[other]) >= pieces, WAIT_S)
        for piece in pieces_of(self._url, asker):
            with self._news:
                self._pieces[number].append(piece)
                self._news.notify_all()
            if len(self._pieces[number]) == asker.leaves_at:
                break
        return "".join(self._pieces[number])


def pieces_of(url: str, asker: Asker) -> Iterator[str]:
    with (
        openai.OpenAI(base_url=f"http://{url}/v1", api_key="none", max_retries=0) as client,
        client.completions.create(
            model="smollm2",
            prompt=asker.prompt,
            max_tokens=asker.tokens,
            stream=True,
            extra_body={"ignore_eos": True},
            **asker.sampling,
        ) as stream,
    ):
        for chunk in stream:
            yield chunk.choices[0].text


def metric(server: ServerProcess, name: str) -> float:
    text = ask(server.metrics_port, "GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith(f"{name}{{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_texts_of_many_clients_are_those_of_each_alone(server: ServerProcess) -> None:
    crowd = Crowd(server.http_url)
    with ThreadPoolExecutor(len(ASKERS)) as threads:
        texts = list(threads.map(crowd.ask, range(len(ASKERS))))
    assert metric(server, "tritrio_llm_cached_prompt_tokens_total") >= KV_BLOCK_TOKENS
    for asker, text in zip(ASKERS, texts, strict=True):
        pieces = islice(pieces_of(server.http_url, asker), asker.leaves_at)
        assert text == "".join(pieces)
    assert metric(server, "tritrio_llm_cancelled_requests_total") == 2  # of the one that leaves
