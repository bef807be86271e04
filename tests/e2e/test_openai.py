"""The official client of OpenAI's API against a real server process."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from openai.types import Completion, CreateEmbeddingResponse, Model
from tokenizers import Tokenizer

from tests.support.server_process import HOST, ServerProcess, running_server
from tests.support.talking import write_talking_model

from .expected import answer
from .models import EXAMPLES, copy_example

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KEY = "sk-right"
SENTENCES = ["A man is eating food.", "A cheetah runs.", "Hi", "The girl is carrying a baby, then."]
POLLS_MAX = 400


@pytest.fixture(scope="module", params=["tritrio", "hypercorn"])
def server(
    weights: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server with the model `talk` and the example `minilm`, which wants a key."""
    place = tmp_path_factory.mktemp("openai")
    write_talking_model(place / "models", "talk")
    copy_example(place / "models", "minilm")
    keys = place / "keys"
    keys.write_text(f"{KEY}\n")
    flags = (f"--openai-api-key-file={keys}", f"--http-server={request.param}")
    with running_server(place / "models", place / "log", *flags, "--log-verbose=1") as server:
        yield server
        assert server.stop() == 0
        log = server.log()
        assert "Traceback" not in log
        assert KEY not in log


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"http://{server.http_url}/v1", api_key=KEY, max_retries=0, timeout=20
    ) as client:
        yield client


def test_completions(client: openai.OpenAI) -> None:
    raw = client.completions.with_raw_response.create(
        model="talk", prompt=["a|b", "c"], n=2, logprobs=1, max_tokens=5, temperature=0, seed=3
    )
    whole = Completion.model_validate_json(raw.text, strict=True)
    assert whole == raw.parse()
    assert [choice.text for choice in whole.choices] == ["ab", "1ab", "c", "1c"]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    assert raw.request_id == whole.id


def test_streams(client: openai.OpenAI) -> None:
    with client.completions.create(
        model="talk", prompt="a|b|c", stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = stream
    assert [chunk.choices[0].text for chunk in chunks] == ["a", "b", "c"]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 6


@pytest.mark.parametrize(
    ("members", "kind", "code"),
    [
        ({"temperature": -1}, openai.BadRequestError, None),
        ({"suffix": "x"}, openai.BadRequestError, None),
        ({"extra_body": {"whatever": 1}}, openai.BadRequestError, "unknown_parameter"),
        ({"model": "nobody"}, openai.NotFoundError, "model_not_found"),
        ({"model": "minilm"}, openai.NotFoundError, "model_not_found"),
        ({"prompt": "!fail"}, openai.InternalServerError, "internal_error"),
        ({"prompt": "!busy"}, openai.InternalServerError, "overloaded"),
        ({"extra_headers": {"Authorization": "Bearer x"}}, openai.AuthenticationError,
         "invalid_api_key"),
    ],
)  # fmt: skip
def test_errors_are_the_exceptions_of_the_client(
    client: openai.OpenAI, members: dict[str, Any], kind: type[openai.APIStatusError], code: Any
) -> None:
    with pytest.raises(kind) as caught:
        client.completions.create(**{"model": "talk", "prompt": "a", **members})
    assert caught.value.code == code


def test_a_failure_within_a_stream_is_an_exception(client: openai.OpenAI) -> None:
    stream = client.completions.create(model="talk", prompt="a|!fail", stream=True)
    assert next(stream).choices[0].text == "a"
    with pytest.raises(openai.APIError, match="fail"):
        next(stream)
    stream.close()


def test_extras_of_vllm_reach_the_model(client: openai.OpenAI) -> None:
    extra = {"top_k": 3, "guided_regex": "a+", "ignore_eos": True}
    made = client.completions.create(model="talk", prompt="!sampling", extra_body=extra)
    assert json.loads(made.choices[0].text) == {
        "ignore_eos": True,
        "max_tokens": 16,
        "structured_outputs": {"regex": "a+"},
        "top_k": 3,
    }


def test_models(client: openai.OpenAI) -> None:
    minilm, talk = client.models.list()
    assert (minilm.id, talk.id) == ("minilm", "talk")
    assert minilm.model_extra == {"supported_endpoints": ["/v1/embeddings"], "max_model_len": 256}
    assert talk.model_extra == {"supported_endpoints": ["/v1/completions"]}
    raw = client.models.with_raw_response.retrieve("talk")
    assert Model.model_validate_json(raw.text, strict=True).owned_by == "tritrio"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def embedded(sentence: str) -> np.ndarray[Any, Any]:
    """What the model says by itself."""
    tokenizer = Tokenizer.from_file(str(EXAMPLES / "minilm" / "tokenizer.json"))
    tokenizer.no_padding()
    ids = np.array([tokenizer.encode(sentence).ids], np.int64)
    return np.asarray(answer("minilm", {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0])


def test_embeddings_are_those_of_the_model(client: openai.OpenAI) -> None:
    made = client.embeddings.create(model="minilm", input=SENTENCES)  # asks for base64
    raw = client.embeddings.with_raw_response.create(
        model="minilm", input=SENTENCES, encoding_format="float", dimensions=384
    )
    numbers = CreateEmbeddingResponse.model_validate_json(raw.text, strict=True)
    assert [each.index for each in numbers.data] == [0, 1, 2, 3]
    for sentence, packed, plain in zip(SENTENCES, made.data, numbers.data, strict=True):
        np.testing.assert_allclose(packed.embedding, embedded(sentence), atol=1e-5)
        assert np.array_equal(np.array(packed.embedding, "f4"), np.array(plain.embedding, "f4"))
    ids = Tokenizer.from_file(str(EXAMPLES / "minilm" / "tokenizer.json"))
    ids.no_padding()
    tokens = [each.ids for each in ids.encode_batch(SENTENCES)]
    assert numbers.usage.prompt_tokens == sum(map(len, tokens))
    again = client.embeddings.create(model="minilm", input=tokens)
    np.testing.assert_allclose(again.data[3].embedding, made.data[3].embedding, atol=1e-6)


def test_many_inputs_are_several_batches(client: openai.OpenAI) -> None:
    inputs = [f"number {index}" for index in range(70)]
    made = client.embeddings.create(model="minilm", input=inputs)
    assert len(made.data) == 70
    np.testing.assert_allclose(made.data[69].embedding, embedded("number 69"), atol=1e-5)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"dimensions": 3}, "dimensions"),
        ({"input": "word " * 300}, "input"),
        ({"input": [10**6]}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
    ],
)
def test_embeddings_that_cannot_be_are_refused(
    client: openai.OpenAI, members: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(**{"model": "minilm", "input": "a", **members})
    assert caught.value.param == param


def test_a_client_that_leaves_cancels_the_request(server: ServerProcess) -> None:
    place = server.log_path.parent
    (place / "cancelled").unlink(missing_ok=True)
    body = json.dumps({"model": "talk", "prompt": "a|!wait|b", "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer {KEY}\r\n"
    with socket.create_connection((HOST, server.http_port), timeout=20) as end:
        end.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        received = b""
        while b'"text":"a"' not in received:
            received += end.recv(65536)
    for _ in range(POLLS_MAX):
        if (place / "cancelled").exists():
            return
        server.has_ended(0.02)
    raise AssertionError("the model was not told")


def test_keys_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_talking_model(tmp_path / "models", "talk")
    monkeypatch.setenv("TRITRIO_OPENAI_API_KEYS", f"other,{KEY}")
    with (
        running_server(tmp_path / "models", tmp_path / "log") as server,
        openai.OpenAI(base_url=f"http://{server.http_url}/v1", api_key=KEY) as client,
    ):
        assert client.completions.create(model="talk", prompt="a").choices[0].text == "a"
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        assert server.stop() == 0
        line = "calls below /v1 need one of 2 API keys as bearer token; calls below /v2 need none"
        assert f'"{line}"\n' in server.log()
        assert KEY not in server.log()
