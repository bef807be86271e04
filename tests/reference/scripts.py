"""Requests that meet each other in a model's queue, and what becomes of them and the statistics.

A script's order is certain without sleeping: the model opens a FIFO and so waits for the test,
and the test waits for a request to be queued by the metric that counts the queued ones.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from .cases import Case, Json
from .grpc_exchange import SERVICE, _channel
from .http_api_cases import get
from .http_exchange import exchange
from .servers import HOST, Server

ATTEMPTS_MAX = 2000
ATTEMPT_INTERVAL_S = 0.005
"""Ten seconds for anything that another process must do first."""
CALL_LIMIT_S = 20.0
SETTLED_READS = 3
"""The reference counts after it has answered: the counts must stay equal for so many reads."""
GIVEN_BY_ENSEMBLES = {"sequence_id", "sequence_start", "sequence_end"}
"""Parameters of every answer of an ensemble of the reference; one case compares them."""

Request: TypeAlias = Any
"""A ModelInferRequest."""
Counts: TypeAlias = dict[str, int]


@dataclass(slots=True)
class Stage:
    """Where a script is played: a server, the calls so far, and the busy instances' gates."""

    server: Server
    method: Any
    directory: Path
    requests: list[Request] = field(default_factory=list)
    calls: list[grpc.Future] = field(default_factory=list)
    gates: list[int] = field(default_factory=list)

    def send(self, request: Request) -> grpc.Future:
        """Start a call."""
        call = self.method.future(request, timeout=CALL_LIMIT_S)
        self.requests.append(request)
        self.calls.append(call)
        return call


class Step(Protocol):
    """One move of a script."""

    def play(self, stage: Stage) -> None: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request and wait for its answer."""

    request: Request

    def play(self, stage: Stage) -> None:
        wait_for_answer(stage.server, stage.send(self.request))


@dataclass(frozen=True, slots=True)
class Queue:
    """Send a request and wait until it is queued, or answered; `at` is the queue's model."""

    request: Request
    at: str = ""

    def play(self, stage: Stage) -> None:
        model = self.at or self.request.model_name
        before = queued(stage.server, model)
        call = stage.send(self.request)
        until(
            stage.server, lambda: call.done() or queued(stage.server, model) > before, "not queued"
        )


@dataclass(frozen=True, slots=True)
class Hold:
    """Send a request that keeps its instance busy, and wait until it does."""

    request: Request

    def play(self, stage: Stage) -> None:
        gate = stage.directory / f"gate{len(stage.calls)}"
        os.mkfifo(gate)
        request = pb.ModelInferRequest()
        request.CopyFrom(self.request)
        shape = list(request.inputs[0].shape)
        shape[-1] = 1
        one = request.inputs.add(name="GATE", datatype="BYTES", shape=shape)
        one.contents.bytes_contents.extend([str(gate).encode()] * shape[0])
        call = stage.send(request)
        until(
            stage.server,
            lambda: call.done() or open_if_waited_for(gate, stage.gates),
            "not executed",
        )


@dataclass(frozen=True, slots=True)
class Release:
    """Let a busy instance go on: of those still busy, the one of that number."""

    number: int = 0

    def play(self, stage: Stage) -> None:
        os.close(stage.gates.pop(self.number))


@dataclass(frozen=True, slots=True)
class Pause:
    """Let time pass, for what is about time."""

    seconds: float

    def play(self, stage: Stage) -> None:
        rest(stage.server, self.seconds)


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the answer to the request of that number."""

    number: int

    def play(self, stage: Stage) -> None:
        wait_for_answer(stage.server, stage.calls[self.number])


@dataclass(frozen=True, slots=True)
class WaitForAll:
    """Wait for the answers to all requests so far."""

    def play(self, stage: Stage) -> None:
        for call in stage.calls:
            wait_for_answer(stage.server, call)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the request of that number."""

    number: int

    def play(self, stage: Stage) -> None:
        stage.calls[self.number].cancel()


@dataclass(frozen=True, slots=True)
class Script:
    """Steps, and the models whose statistics are compared."""

    steps: tuple[Step, ...]
    watched: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Played:
    """What a client sees.

    Attributes:
      json: "answers" in the order of the requests, their "statuses" alone, and what was
        "added" to the statistics of the watched models.
    """

    json: Json
    errors: tuple[str, ...]
    status: str = "OK"

    def comparable(self) -> dict[str, Any]:
        """Everything but error texts."""
        return {"json": self.json, "errors": len(self.errors)}


def play(server: Server, case: Case[Script]) -> Played:
    """Play a script to its end."""
    script = case.request
    path = f"/{SERVICE}/ModelInfer"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        channel = stack.enter_context(_channel(server))
        method = channel.unary_unary(
            path,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelInferResponse.FromString,
        )
        stage = Stage(server, method, directory)
        before = [counts(server, model) for model in script.watched]
        try:
            for step in script.steps:
                step.play(stage)
        finally:
            for gate in stage.gates:
                os.close(gate)
        errors: list[str] = []
        answers = [answer(call, errors) for call in stage.calls]
    relative(answers)
    statuses = [one["status"] for one in answers]
    content: Json = {"answers": answers, "statuses": statuses}
    if script.watched:
        names = [request.model_name for request in stage.requests]
        wanted = list(zip(names, statuses, strict=True)).count((script.watched[0], "OK"))
        content["added"] = settled(server, script.watched, before, wanted)
    return Played(case.mask(content) if case.mask else content, tuple(errors))


def answer(call: grpc.Future, errors: list[str]) -> Json:
    """A call's answer: its status, and of a good one everything but an ensemble's parameters."""
    try:
        response = call.result()
    except grpc.FutureCancelledError:
        return {"status": "CANCELLED"}
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.CANCELLED:
            errors.append(error.details())
        return {"status": error.code().name}
    content: Json = {"status": "OK", "id": response.id}
    parameters = {
        name: str(value)
        for name, value in response.parameters.items()
        if name not in GIVEN_BY_ENSEMBLES
    }
    if parameters:
        content["parameters"] = parameters
    for output, data in zip(response.outputs, response.raw_output_contents, strict=True):
        shape = list(output.shape)
        if output.name == "FACTS":
            content["facts"] = [shape, json.loads(data[struct.calcsize("<I") :])]
        else:
            content[output.name] = [output.datatype, shape, np.frombuffer(data, "<i4").tolist()]
    return content


def relative(answers: list[Json]) -> None:
    """Number instances by when they come first, and their executions from the first one on."""
    facts = [
        one["facts"][1] for one in answers if "facts" in one and isinstance(one["facts"][1], dict)
    ]
    firsts: dict[str, int] = {}
    for fact in facts:
        known = firsts.get(fact["instance"], fact["execution"])
        firsts[fact["instance"]] = min(known, fact["execution"])
    names = list(firsts)
    for fact in facts:
        fact["execution"] -= firsts[fact["instance"]]
        fact["instance"] = names.index(fact["instance"])


def wait_for_answer(server: Server, call: grpc.Future) -> None:
    """Wait until the call has ended, well or not."""
    until(server, call.done, "not answered")


def until(server: Server, condition: Callable[[], bool], complaint: str) -> None:
    """Wait until the condition holds, or fail the test."""
    for _ in range(ATTEMPTS_MAX):
        if condition():
            return
        rest(server, ATTEMPT_INTERVAL_S)
    pytest.fail(complaint)


def rest(server: Server, seconds: float) -> None:
    """Let time pass, unless the server ends."""
    try:
        server.process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    server.check_running()


def open_if_waited_for(gate: Path, opened: list[int]) -> bool:
    """Open the FIFO for writing and keep it so if a reader waits at it."""
    try:
        opened.append(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True


def metrics(server: Server, family: str, model: str) -> dict[str, int]:
    """The values of a metric family for a model, by their other labels."""
    connection = http.client.HTTPConnection(HOST, server.ports.metrics, timeout=CALL_LIMIT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{")
        labels, _, value = rest.rpartition("} ")
        pairs = dict(pair.split("=") for pair in labels.split(",") if pair)
        if name == family and pairs.pop("model", "") == f'"{model}"':
            found[pairs.get("reason", "").strip('"')] = int(float(value))
    return found


def queued(server: Server, model: str) -> int:
    """How many requests wait in the queue of a model."""
    return sum(metrics(server, "nv_inference_pending_request_count", model).values())


def counts(server: Server, model: str) -> Counts:
    """A model's statistics as one level of counts."""
    seen = exchange(server, Case("statistics", get(f"/v2/models/{model}/stats"), 200))
    (entry,) = seen.json["model_stats"]
    flat = {name: duration["count"] for name, duration in entry["inference_stats"].items()}
    flat["inferences"] = entry["inference_count"]
    flat["executions"] = entry["execution_count"]
    for batch in entry["batch_stats"]:
        flat[f"batches of {batch['batch_size']}"] = batch["compute_infer"]["count"]
    failures = metrics(server, "nv_inference_request_failure", model)
    return flat | {f"fail {reason}": count for reason, count in failures.items()}


def settled(
    server: Server, models: tuple[str, ...], before: list[Counts], wanted: int
) -> dict[str, Counts]:
    """What was added to the counts of the models, once it does not change any more.

    Arguments:
      wanted: The good answers, which the first model must have counted.
    """
    same = 0
    last: dict[str, Counts] = {}
    for _ in range(ATTEMPTS_MAX):
        now = {
            model: added(counts(server, model), old)
            for model, old in zip(models, before, strict=True)
        }
        enough = now[models[0]].get("success", 0) >= wanted
        same = same + 1 if now == last and enough else 0
        if same == SETTLED_READS:
            break
        last = now
        rest(server, ATTEMPT_INTERVAL_S)
    return last


def added(now: Counts, before: Counts) -> Counts:
    """The counts that grew, and by how much."""
    grown = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: count for name, count in grown.items() if count}
