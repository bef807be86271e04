"""The chat with questions from a pipe, and what it says when there is no answer."""

from __future__ import annotations

import io
from http.server import BaseHTTPRequestHandler
from typing import TypeAlias

import pytest

from tests.support.chat_server import (
    Respond,
    begin_stream,
    chat_server,
    end_event,
    free_port,
    send_chunk,
    send_document,
    streams,
    text_event,
)
from tritrio.chat.program import main

Outcome: TypeAlias = tuple[int, str, str]
DONE = b"data: [DONE]\n\n"
HELLO = streams(text_event("Hello"), text_event(" there"), DONE)


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    return Chat(monkeypatch, capsys)


class Chat:
    """Runs the program; returns its exit code, what it printed and what it complained about."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, url: str, *arguments: str, questions: str = "Who?\n") -> Outcome:
        stdin = io.TextIOWrapper(io.BytesIO(questions.encode()), encoding="utf-8")
        self._monkeypatch.setattr("sys.stdin", stdin)
        code = main(["--url", url, *arguments])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    def error(self, respond: Respond) -> str:
        """What it complains about, on one line, after it printed nothing."""
        with chat_server(respond) as server:
            code, out, err = self(server.url)
        assert (code, out) == (1, "")
        assert err.count("\n") == 1
        return err.replace(server.url, "URL").removeprefix("tritrio chat: ").removesuffix("\n")


def test_each_line_is_a_question_that_knows_those_before_it(chat: Chat) -> None:
    with chat_server(HELLO, models=["first", "second"]) as server:
        assert chat(server.url, questions="Who?\n\n  Größe?  \n") == (
            0,
            "Hello there\nHello there\n",
            "",
        )
    question = {"role": "user", "content": "Who?"}
    assert server.bodies == [
        {"model": "first", "messages": [question], "stream": True},
        {
            "model": "first",
            "messages": [
                question,
                {"role": "assistant", "content": "Hello there"},
                {"role": "user", "content": "Größe?"},
            ],
            "stream": True,
        },
    ]
    assert "Authorization" not in server.headers


def test_options_are_in_the_request(chat: Chat) -> None:
    options = ["--model=m", "--api-key=k", "--system=Be brief.", "--temperature=0"]
    with chat_server(HELLO, models=()) as server:
        code, _, _ = chat(f"{server.url}/v1/", *options, "--max-tokens=5")
    assert code == 0
    assert server.headers["Authorization"] == "Bearer k"
    (body,) = server.bodies
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.0, 5)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}


def test_the_key_may_be_in_the_environment(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-env")
    with chat_server(HELLO) as server:
        for arguments, sent in (
            ([], "Bearer sk-env"),
            (["--api-key=k"], "Bearer k"),
            (["--api-key="], None),
        ):
            assert chat(server.url, *arguments)[0] == 0
            assert server.headers.get("Authorization") == sent


def test_an_answer_that_was_cut_is_marked(chat: Chat) -> None:
    with chat_server(streams(text_event("Hel"), end_event("length"), DONE)) as server:
        mark = "tritrio chat: the answer was cut: it has as many tokens as it may have\n"
        assert chat(server.url, questions="/a?\nb?\n") == (0, "Hel\nHel\n", mark * 2)
    assert server.bodies[0]["messages"][0]["content"] == "/a?"  # a pipe has no commands


def test_characters_may_be_split_anywhere(chat: Chat) -> None:
    stream = text_event("süß 🌊") + text_event("!") + DONE
    with chat_server(streams(*(stream[at : at + 1] for at in range(len(stream))))) as server:
        assert chat(server.url) == (0, "süß 🌊!\n", "")


@pytest.mark.parametrize(
    ("status", "document", "error"),
    [
        (
            401,
            {"error": {"message": "expected a key"}},
            (
                "401 Unauthorized: expected a key; the key is that of --api-key, or else of "
                "OPENAI_API_KEY"
            ),
        ),
        (404, {"error": {"message": "no model\n'm'"}}, "404 Not Found: no model 'm'"),
        (
            404,
            {"error": {"message": "no model 'm'", "code": "model_not_found"}},
            "404 Not Found: no model 'm'; --model NAME chooses one",
        ),
        (503, b"<html>busy</html>", "503 Service Unavailable"),
    ],
)
def test_a_refusal_is_one_line(chat: Chat, status: int, document: object, error: str) -> None:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        send_document(handler, status, document)

    assert chat.error(respond) == f"URL answered {error}"


def test_a_server_that_hangs_up_is_one_line(chat: Chat) -> None:
    def respond(handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True

    assert chat.error(respond).startswith("the server at URL went away: Remote end closed")


def test_what_there_is_of_an_answer_is_printed_before_what_ended_it(chat: Chat) -> None:
    def breaks(handler: BaseHTTPRequestHandler) -> None:
        begin_stream(handler)
        send_chunk(handler, text_event("Hel"))
        handler.close_connection = True

    failure = b'data: {"error": {"message": "out of memory"}}\n\n'
    for respond, error in (
        (breaks, "the server went away before the answer was complete"),
        (streams(text_event("Hel"), failure), "out of memory"),
    ):
        with chat_server(respond) as server:
            assert chat(server.url) == (1, "Hel\n", f"tritrio chat: {error}\n")


def test_without_a_server_or_a_model_it_says_so(chat: Chat) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    refused = f"tritrio chat: no server answers at {url}: Connection refused\n"
    assert chat(url) == (1, "", refused)
    with chat_server(HELLO, models=()) as server:
        none = f"tritrio chat: the server at {server.url} has no model to chat with\n"
        assert chat(server.url) == (1, "", none)
        code, _, err = chat(f"{server.url}/elsewhere")
        assert (code, err) == (
            1,
            f"tritrio chat: {server.url}/elsewhere answered 404 Not Found\n",
        )


def test_the_model_is_the_first_that_can_chat(chat: Chat) -> None:
    models = ["embeds", "completes", "chats", "chats_too"]
    can = {
        "embeds": ["/v1/embeddings"],
        "completes": ["/v1/completions"],
        "chats": ["/v1/chat/completions", "/v1/completions"],
        "chats_too": ["/v1/chat/completions"],
    }
    with chat_server(HELLO, models, can) as server:
        assert chat(server.url)[0] == 0
        assert chat(server.url, "--model=embeds")[0] == 0  # whoever names one knows better
    assert [body["model"] for body in server.bodies] == ["chats", "embeds"]
    with chat_server(HELLO, ["embeds", "silent"], can) as server:
        assert chat(server.url)[0] == 0
    assert server.bodies[0]["model"] == "silent"


def test_where_no_model_can_chat_those_there_are_are_named(chat: Chat) -> None:
    names = [f"m{number}" for number in range(18)]
    with chat_server(HELLO, names, {name: ["/v1/embeddings"] for name in names}) as server:
        code, out, err = chat(server.url)
    assert (code, out) == (1, "")
    assert err == (
        f"tritrio chat: no model of the server at {server.url} says that it can chat; there are "
        f"{', '.join(names[:16])} and 2 more, and --model NAME asks one all the same\n"
    )


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (
            ["--url", "host:8000"],
            "expected --url to be http://HOST:PORT, got 'host:8000'",
        ),
        (["--url", "http://h:x"], "expected --url to be http://HOST:PORT, got 'http://h:x'"),
        (
            ["--api-key", "ü"],
            "expected the key (--api-key, or OPENAI_API_KEY) to be of printable ASCII characters",
        ),
        (["--max-tokens", "x"], "argument --max-tokens: invalid int value: 'x'"),
        (["--models", "x"], "unrecognized arguments: --models x"),
    ],
)
def test_a_wrong_argument_is_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as left:
        code = left.code
    assert code == 1
    assert capsys.readouterr().err == f"tritrio chat: {error}\n"
