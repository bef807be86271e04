"""Short ways to write requests for the models of the scheduling tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .cases import Case, Differs, Json, Mask, Status, in_any_order
from .grpc_exchange import Call
from .grpc_requests import request, tensor
from .http_exchange import Http
from .http_requests import infer as http_infer
from .scheduling_repository import ROWS_MAX
from .scripts import Request, Script, Step

WHEN: dict[str, dict[str, Any]] = {
    "start": {"sequence_start": True},
    "middle": {},
    "end": {"sequence_end": True},
    "only": {"sequence_start": True, "sequence_end": True},
}
"""The flags of a request by its place in its sequence."""


def give(
    model: str,
    value: int | Sequence[int] = 1,
    *,
    mode: str = "",
    name: str = "",
    outputs: Sequence[str] = (),
    extra: int | None = None,
    across: bool = False,
    **parameters: Any,
) -> Request:
    """A request with INPUT0.

    Arguments:
      value: Its elements: rows of one, or with `across` one row; without a batch dimension
        just elements.
      mode: The fault that is asked for.
      extra: The element of the input EXTRA.
      parameters: Of the request, `priority` and so on.
    """
    values = [value] if isinstance(value, int) else list(value)
    if not ROWS_MAX[model]:
        shape, single = [len(values)], [1]
    else:
        shape, single = [1, len(values)] if across else [len(values), 1], [1, 1]
    inputs = [tensor("INPUT0", "INT32", shape, {"int_contents": values})]
    if mode:
        inputs.append(tensor("MODE", "BYTES", single, {"bytes_contents": [mode.encode()]}))
    if extra is not None:
        inputs.append(tensor("EXTRA", "INT32", single, {"int_contents": [extra]}))
    return request(inputs, model=model, name=name, outputs=outputs, parameters=parameters)


def part(
    model: str, identity: int | str, when: str, value: int | Sequence[int] = 1, **more: Any
) -> Request:
    """A request of a sequence; `when` is one of `WHEN`."""
    return give(model, value, sequence_id=identity, **WHEN[when], **more)


def without_place(content: Json) -> Json:
    """An answer over HTTP whose FACTS do not say when and where it was executed."""
    for output in content["outputs"]:
        if output["name"] == "FACTS":
            facts = json.loads(output["data"][0])
            output["data"] = in_any_order(facts["batch"])
    return content


def call(message: Request) -> Call:
    """A ModelInfer with that request."""
    return Call("ModelInfer", (message,))


def post(model: str, *values: int, outputs: Any = None, **parameters: Any) -> Http:
    """A request with INPUT0 over HTTP."""
    shape = [len(values), 1] if ROWS_MAX[model] else [len(values)]
    one = {"name": "INPUT0", "datatype": "INT32", "shape": shape, "data": values}
    body: dict[str, Any] = {"inputs": [one], "parameters": parameters}
    if outputs is not None:
        body["outputs"] = outputs
    return http_infer(body, model)


def of_its_own(content: Json) -> Json:
    """Answers without their batches: who joins a batch that is about to leave is luck.

    That is so where the reference forms a batch before an instance is free for it.
    """
    for answer in content["answers"]:
        if "facts" in answer:
            shape, facts = answer["facts"]
            answer["facts"] = [shape, facts["batch"][facts["position"]]]
    return content


def without_null_outputs(content: Json) -> Json:
    """Answers that do not say which outputs the null requests of their batches ask for."""
    for answer in content["answers"]:
        facts = answer.get("facts", [None, None])[1]
        for row in facts["batch"] if isinstance(facts, dict) else ():
            if row["correlation"] == 0 and "READY" in row["inputs"]:
                row["outputs"] = None
    return content


def script(
    name: str,
    *steps: Step,
    watch: str = "",
    expected: Status | Differs = "OK",
    mask: Mask = without_null_outputs,
) -> Case[Script]:
    """A case of these steps; `watch` are the models whose statistics count, apart by blanks."""
    return Case(name, Script(steps, tuple(watch.split())), expected, mask)
