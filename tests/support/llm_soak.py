"""Clients of a model that generates text which leave at any moment, on real connections."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Final

import orjson
import trio
from tritonclient.grpc import service_pb2 as pb

from tests.support.grpc_client import DEADLINE_EXCEEDED, OK, Call, GrpcClient, framed
from tests.support.http_client import HttpClient, request_bytes
from tests.support.server_process import ServerProcess
from tests.support.socket_end import SocketEnd

FACES: Final = (
    "generate_stream",
    "completions",
    "completions, stream",
    "chat",
    "chat, stream",
    "ModelStreamInfer",
)
GRPC: Final = "ModelStreamInfer"
POINTS: Final = ("sending", "at once", "any time", "prompt", "a token", "last token", "unread")
AT_TOKENS: Final = POINTS[-3:]
"""Those behind some token of a stream."""
WAYS: Final = ("FIN", "RST")
GRPC_WAYS: Final = ("RST_STREAM", "deadline", *WAYS)
SMALL_WINDOW_BYTES: Final = 600
"""Flow-control window of a gRPC client that will not read: a few responses."""


class EndedEarlyError(Exception):
    """The server gave no whole answer; the message says what came."""


@dataclass(frozen=True)
class Ask:
    """What is asked for.

    Attributes:
      model: Of whom.
      face: Over which call; one of `FACES`.
      prompt: The prompt.
      seed: By which the request is found among the traces.
      max_tokens: Tokens of the text; it ends no earlier.
      temperature: 0 for greedy.
    """

    model: str
    face: str
    prompt: str
    seed: int
    max_tokens: int
    temperature: float = 0.0

    @property
    def streams(self) -> bool:
        """Whether the text comes token by token."""
        return self.face in ("generate_stream", GRPC) or self.face.endswith("stream")

    @property
    def sampling(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "ignore_eos": True,
        }

    def http_bytes(self) -> bytes:
        """The request over HTTP."""
        if self.face == "generate_stream":
            target = f"/v2/models/{self.model}/generate_stream"
            members: dict[str, Any] = {
                "text_input": self.prompt,
                "stream": True,
                "exclude_input_in_output": True,
                "sampling_parameters": json.dumps(self.sampling),
            }
        else:
            members = {"model": self.model, "stream": self.streams, **self.sampling}
            if self.face.startswith("chat"):
                target = "/v1/chat/completions"
                members["messages"] = [{"role": "user", "content": self.prompt}]
            else:
                target = "/v1/completions"
                members["prompt"] = self.prompt
        return request_bytes(target, orjson.dumps(members))

    def grpc_message(self) -> Any:
        """The request over gRPC."""
        request = pb.ModelInferRequest(model_name=self.model)
        for name, text in (
            ("text_input", self.prompt),
            ("sampling_parameters", json.dumps(self.sampling)),
        ):
            tensor = request.inputs.add(name=name, datatype="BYTES", shape=[1])
            tensor.contents.bytes_contents.append(text.encode())
        for name in ("stream", "exclude_input_in_output"):
            tensor = request.inputs.add(name=name, datatype="BOOL", shape=[1])
            tensor.contents.bool_contents.append(True)
        return request


@dataclass
class Heard:
    """What a client has heard of its request.

    Attributes:
      began: Set when something of an answer has come; may be that of several clients.
      outcome: How it ended.
    """

    began: trio.Event = field(default_factory=trio.Event)
    outcome: str = ""


async def ask(server: ServerProcess, wanted: Ask, heard: Heard | None = None) -> str:
    """Read a whole text.

    Raises:
      EndedEarlyError: something else came.
    """
    end = SocketEnd(server.grpc_port if wanted.face == GRPC else server.http_port)
    try:
        over = _ask_grpc if wanted.face == GRPC else _ask_http
        return await over(end, wanted, heard or Heard())
    finally:
        end.close()


async def _ask_http(end: Any, wanted: Ask, heard: Heard) -> str:
    client = HttpClient(end)
    client.send(wanted.http_bytes())
    begun = False
    try:
        response = await (client.head() if wanted.streams else client.response())
        begun = True
        heard.began.set()
        if response.status != 200:
            heard.outcome = str(response.status)
            raise EndedEarlyError(f"HTTP {response.status}: {response.body[:200]!r}")
        if not wanted.streams:
            heard.outcome = "whole"
            return _text(wanted, response.json, "message")
        body = b""
        while chunk := await client.chunk():
            body += chunk
    except (AssertionError, trio.BrokenResourceError, ValueError) as error:
        heard.outcome = "cut off" if begun else "no answer"
        raise EndedEarlyError(f"{wanted.face}: {heard.outcome}: {error!r}") from error
    events = [each.removeprefix(b"data: ") for each in body.split(b"\n\n") if each]
    documents = [orjson.loads(each) for each in events if each != b"[DONE]"]
    if any("error" in each for each in documents):
        heard.outcome = "error event"
        raise EndedEarlyError(f"{wanted.face}: {documents[-1]}")
    heard.outcome = "whole"
    return "".join(_text(wanted, each, "delta") for each in documents)


def _text(wanted: Ask, document: Any, member: str) -> str:
    if wanted.face == "generate_stream":
        return str(document["text_output"])
    (choice,) = document["choices"]
    return str(choice[member].get("content") or "" if "chat" in wanted.face else choice["text"])


async def _ask_grpc(end: Any, wanted: Ask, heard: Heard) -> str:
    client = GrpcClient(end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.run)
        call = client.stream()
        call.send(wanted.grpc_message(), end=True)
        await call.received(1)
        heard.began.set()
        status = await call.done()
        nursery.cancel_scope.cancel()
    errors = [each.error_message for each in call.messages if each.error_message]
    if status != OK or errors:
        heard.outcome = f"status {status}" if status else "error response"
        raise EndedEarlyError(f"gRPC {status} {call.text}: {errors}")
    heard.outcome = "whole"
    return "".join(map(_grpc_text, call.messages))


def _grpc_text(message: Any) -> str:
    outputs = message.infer_response.outputs
    names = [each.name for each in outputs]
    if "text_output" not in names:
        return ""
    raw = message.infer_response.raw_output_contents[names.index("text_output")]
    (size,) = struct.unpack_from("<I", raw)
    return str(raw[4 : 4 + size], "utf-8")


@dataclass(frozen=True)
class Left:
    """A request whose client left.

    Attributes:
      wanted: What it had asked for.
      point: When it left; one of `POINTS`.
      way: How; one of `GRPC_WAYS`.
      left_ns: When, on the clock of all processes of this machine.
      heard: Whether something of the answer had come.
    """

    wanted: Ask
    point: str
    way: str
    left_ns: int
    heard: bool


class Leaver:
    """Sends requests and leaves without their answers.

    Args:
      server: Where to.
      chance: Decides when and how.
      text_s: About what a text takes among the others, in seconds.
    """

    def __init__(self, server: ServerProcess, chance: random.Random, text_s: float) -> None:
        self._server = server
        self._random = chance
        self._text_s = text_s

    async def leave(self, wanted: Ask, point: str) -> Left:
        """Send a request and leave at some point of it."""
        is_grpc = wanted.face == GRPC
        way = self._random.choice(GRPC_WAYS if is_grpc and point != "sending" else WAYS)
        end = SocketEnd(self._server.grpc_port if is_grpc else self._server.http_port)
        over = self._leave_grpc if is_grpc else self._leave_http
        try:
            return await over(end, wanted, point, way)
        finally:
            end.close()

    async def _pause(self, point: str) -> None:
        if point != "at once":
            await trio.sleep(self._random.random() * self._text_s)
        elif self._random.random() < 0.5:
            await trio.sleep(self._random.random() * 0.003)

    def _tokens(self, wanted: Ask, point: str) -> int:
        if point == "unread":
            return self._random.randint(0, 2)
        last = wanted.max_tokens
        return last if point == "last token" else self._random.randint(1, last - 1)

    async def _leave_http(self, end: Any, wanted: Ask, point: str, way: str) -> Left:
        data = wanted.http_bytes()
        client = HttpClient(end)
        if point == "sending":
            data = data[: self._random.randrange(len(data))]
        client.send(data)
        heard = False
        if wanted.streams and point in AT_TOKENS:
            try:
                for _ in range(self._tokens(wanted, point)):
                    if not heard:
                        await client.head()
                        heard = True
                    if not await client.chunk():
                        break
            except (AssertionError, trio.BrokenResourceError) as error:
                raise EndedEarlyError(f"{wanted.face}: {error!r}") from error
        if point == "unread" or not heard:
            await self._pause(point)
        left_ns = perf_counter_ns()
        end.close(reset=way == "RST")
        return Left(wanted, point, way, left_ns, heard)

    async def _leave_grpc(self, end: Any, wanted: Ask, point: str, way: str) -> Left:
        client = GrpcClient(end, window_bytes=SMALL_WINDOW_BYTES if point == "unread" else 65_535)
        timeout = ""
        if way == "deadline":
            timeout_ms = self._random.randint(0, round(1000 * self._text_s))
            timeout = f"{timeout_ms}m"
        async with trio.open_nursery() as nursery:
            reading = trio.CancelScope()
            nursery.start_soon(_read, client, reading)
            begun_ns = perf_counter_ns()
            call = client.stream(timeout=timeout)
            if point == "sending":
                data = framed(wanted.grpc_message())
                client.send_data(
                    call.stream_id, data[: self._random.randrange(len(data))], end=False
                )
            else:
                # A stream that may go on has no end, and there may be fewer responses than tokens.
                ends = point in AT_TOKENS or self._random.random() < 0.5
                call.send(wanted.grpc_message(), end=ends)
            if timeout:
                await self._expire(call)
                left_ns = begun_ns + timeout_ms * 1_000_000
            else:
                await self._wait_grpc(call, wanted, point, reading)
                left_ns = perf_counter_ns()
            if way == "RST_STREAM" and call.status is None:
                call.cancel()
                # What the server hears in time; closing first might overtake it.
                await trio.sleep(self._random.random() * 0.01)
            end.close(reset=way == "RST")
            nursery.cancel_scope.cancel()
        return Left(wanted, point, way, left_ns, bool(call.messages))

    async def _expire(self, call: Call) -> None:
        status = await call.done()
        if status not in (OK, DEADLINE_EXCEEDED):
            raise EndedEarlyError(f"gRPC {status}: {call.text}")

    async def _wait_grpc(
        self, call: Call, wanted: Ask, point: str, reading: trio.CancelScope
    ) -> None:
        if point in AT_TOKENS:
            await call.received(self._tokens(wanted, point))
        if point == "unread":
            reading.cancel()
        if point == "unread" or not call.messages:
            await self._pause(point)
        if call.status not in (None, OK):
            raise EndedEarlyError(f"gRPC {call.status}: {call.text}")


async def _read(client: GrpcClient, scope: trio.CancelScope) -> None:
    with scope:
        await client.run()


@dataclass(frozen=True)
class TracedEnd:
    """The end of a request, as its trace tells it.

    Attributes:
      seed: The seed of its text.
      end_ns: When the engine had nothing of it any more, on the clock of all processes.
      computed: Whether its text was ever begun.
    """

    seed: int
    end_ns: int
    computed: bool


def traced_ends(objects: Sequence[dict[str, Any]]) -> list[TracedEnd]:
    """Return the ends of the requests in a trace file of times and tensors."""
    seeds: dict[int, int] = {}
    ends: dict[int, dict[str, int]] = {}
    for each in objects:
        number = each["id"]
        for stamp in each.get("timestamps", ()):
            ends.setdefault(number, {})[stamp["name"]] = stamp["ns"]
        tensor = each.get("tensor", {})
        if tensor.get("name") == "sampling_parameters":
            seeds[number] = json.loads(json.loads(tensor["data"]))["seed"]
    return [
        TracedEnd(
            seeds[number],
            stamps.get("COMPUTE_END", stamps["REQUEST_END"]),
            computed="COMPUTE_END" in stamps,
        )
        for number, stamps in ends.items()
    ]
