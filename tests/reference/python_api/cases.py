"""The requests: one for each method that looks at something, and those that need more."""

from __future__ import annotations

import ast
import base64
import json
import shutil
from pathlib import Path
from typing import Any

from .. import grpc_requests
from ..cases import Case, Differs, Json, Status
from ..grpc_exchange import Call
from ..http_exchange import Http
from ..http_requests import infer, tensor

HERE = Path(__file__).parent
MODELS = HERE / "models"
SHARED = HERE / "shared"
"""Copied into each version directory."""
ONLY_OURS = ("fails_without_file", "reschedules_in_vain")
"""The reference never ends to load the first, and never answers the second."""
CODE_NAMES = ("model.py", "code.py")
LOOKS = "see_"
"""How the methods are named that look at something."""
STREAMS = "stream_"
"""The same of decoupled models."""


def write_repository(repository: Path, *, for_reference: bool = False) -> None:
    """Copy the models, each with what they share beside its code."""
    left_out = ["__pycache__", *(ONLY_OURS if for_reference else ())]
    shutil.copytree(MODELS, repository, ignore=shutil.ignore_patterns(*left_out))
    for version in repository.glob("*/[0-9]*"):
        for shared in SHARED.glob("*.py"):
            shutil.copy(shared, version)


def models() -> list[str]:
    """The names of the models that can be loaded."""
    names = sorted(path.name for path in MODELS.iterdir())
    return [name for name in names if not name.startswith("fails_") or name == "fails_finalizing"]


def methods_of(model: str, prefix: str) -> list[str]:
    """The methods of a model that are named so."""
    path = next(path for path in CODE_NAMES if (MODELS / model / "1" / path).exists())
    tree = ast.parse((MODELS / model / "1" / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in ast.walk(tree) if isinstance(node, kinds)]
    return [name for name in names if name.startswith(prefix)]


def name_of(model: str, method: str) -> str:
    """The name of a case, as words."""
    words = method.removeprefix(LOOKS).removeprefix(STREAMS).removeprefix("with_")
    return f"{model}: {words.replace('_', ' ')}"


def ask(model: str, mode: str, *more: Json, **members: Any) -> Http:
    """A request that names what to look at."""
    return infer({"inputs": [tensor("MODE", "BYTES", [mode]), *more], **members}, model)


def what_was_seen(content: Json) -> Json:
    """An answer with SEEN as it was before it became text."""
    for output in content.get("outputs", ()):
        if output["name"] == "SEEN":
            output["data"] = [json.loads(text) for text in output["data"]]
            content["seen"] = output["data"][0]
    return content


STATUSES: dict[str, int] = {
    "raising": 500,
    "raising.see_that_it_still_works": 200,
    "returning": 500,
    "returning.see_class_of_response_extended": 200,
    "returning.see_list": 200,
    "returning.see_no_outputs": 200,
    "returning.see_same_response_again": 200,
    "returning.see_same_response_again_later": 200,
    "returning.see_error_with_outputs": 503,
    "sender_once.see_error": 404,
    "calls_at_once.see_raise": 500,
}
"""MODEL.METHOD or MODEL -> the status of both; 200 if it is not here."""


def status_of(model: str, method: str) -> int:
    """The status that both answer with."""
    return STATUSES.get(f"{model}.{method}", STATUSES.get(model, 200))


def look(model: str, mode: str, expected: Status | Differs = 200) -> Case[Http]:
    """A case that calls one of the methods that look at something."""
    return Case(name_of(model, mode), ask(model, mode), expected, what_was_seen)


def what_was_streamed(content: Json) -> Json:
    """The replies of a stream, each as what was seen, or that it was an error."""
    return [_reply(reply) for reply in content]


def _reply(reply: Json) -> Json:
    if reply["error_message"]:
        return "an error"
    response = reply["infer_response"]
    parameters = response["parameters"]
    data = [base64.b64decode(raw)[4:] for raw in response["raw_output_contents"]]
    return {"seen": [json.loads(text) for text in data], "parameters": parameters}


def stream_request(model: str, *modes: str) -> Call:
    """Requests that name what to look at, on one stream."""
    return grpc_requests.stream(
        *(
            grpc_requests.request(
                [grpc_requests.tensor("MODE", "BYTES", [1], {"bytes_contents": [mode.encode()]})],
                model=model,
                parameters={"triton_enable_empty_final_response": True},
            )
            for mode in modes
        )
    )


def stream(model: str, mode: str, expected: Status | Differs = "OK") -> Case[Call]:
    """A case that streams what one of the methods sends."""
    return Case(name_of(model, mode), stream_request(model, mode), expected, what_was_streamed)


def saw(reference: Json, ours: Json, why: str) -> Differs:
    """What either side saw where that differs, and why."""
    return Differs((200, {"seen": reference}), (200, {"seen": ours}), why)
