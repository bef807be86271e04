"""What load and unload requests may say: names, parameters, files; nothing is loaded by them."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tritonclient.grpc import service_pb2 as pb

from .cases import BAD_JSON, Differs, Expected
from .http_exchange import Http
from .life_cycle import (
    OnOneSide,
    Scenario,
    Step,
    load,
    load_grpc,
    unload,
    unload_grpc,
)
from .life_cycle_files import ECHO, PYTHON_JSON, all_of, ensemble, model, nothing, without_source

CONFIG = json.dumps(PYTHON_JSON)
SOURCE = base64.b64encode(ECHO.encode()).decode()
GENERAL = 500
"""What the reference says of whatever it finds while it looks at the repository."""


def refusal(row: str, reference: Expected = GENERAL) -> Differs:
    """Our refusal of what the reference refuses in general, or takes."""
    return Differs(reference, 400, row)


# Names.

BAD_NAMES = {
    "one blank": " ",
    "a tab": "\t",
    "a dot": ".",
    "two dots": "..",
    "a way up": "../x",
    "a slash": "a/b",
    "a backslash": "a\\b",
    "dots behind a blank": " ..",
    "a slash at the end": "x/",
    "a way through the repository": "./held",
    "300 characters": "x" * 300,
}
GOOD_NAMES = {
    "three dots": "...",
    "dots in front": "..m",
    "dots inside": "m..1",
    "a dot inside": "model.version1",
    "a blank inside": "a b",
    "no ASCII": "é",
    "nothing special": "nobody",
}


def _names() -> list[Step]:
    steps: list[Step] = []
    for what, name in BAD_NAMES.items():
        path = quote(name, safe="")
        grpc = Differs("INTERNAL", "INVALID_ARGUMENT", "load-names")
        steps += [
            Step(f"load of {what}", load(path), refusal("load-names")),
            Step(f"load of {what} over gRPC", load_grpc(name), grpc),
            Step(f"unload of {what}", unload(path), 200),
            Step(f"unload of {what} over gRPC", unload_grpc(name), "OK"),
        ]
    for what, name in GOOD_NAMES.items():
        path = quote(name, safe="")
        steps += [
            Step(f"load of {what}", load(path), 500),
            Step(f"load of {what} over gRPC", load_grpc(name), "INTERNAL"),
            Step(f"unload of {what}", unload(path), 200),
            Step(f"unload of {what} over gRPC", unload_grpc(name), "OK"),
        ]
    return [
        *steps,
        Step("load of no name", load(""), 404),
        Step(
            "load of no name over gRPC",
            load_grpc(""),
            Differs("INTERNAL", "INVALID_ARGUMENT", "load-names"),
        ),
        Step("unload of no name over gRPC", unload_grpc(""), "OK"),
    ]


NAMES = Scenario("names", ("held",), nothing, _names())

# Parameters over HTTP, of a model that lies there and was never loaded.


def still(what: str, expected: Any, parameters: Mapping[str, Any]) -> Step:
    """A load of `still` with parameters."""
    return Step(f"load with {what}", load("still", parameters), expected)


def raw(what: str, body: bytes, expected: Any) -> Step:
    """A load of `still` with a body."""
    return Step(
        f"load with {what}", Http("POST", "/v2/repository/models/still/load", body), expected
    )


def config(what: str, expected: Any, **changes: Any) -> Step:
    """A load of `still` with a configuration that is changed."""
    return still(what, expected, {"config": json.dumps({**PYTHON_JSON, **changes})})


def files(what: str, expected: Any, *paths: str, content: Any = SOURCE) -> Step:
    """A load of `still` with a configuration and files."""
    return still(what, expected, {"config": CONFIG, **{f"file:{path}": content for path in paths}})


HTTP_FAULTS = [
    raw("broken JSON", b"{", BAD_JSON),
    raw("text behind the document", b'{"parameters":{"config":"{"}} x', BAD_JSON),
    raw("parameters that are a number", b'{"parameters":3}', BAD_JSON),
    raw("parameters that are null", b'{"parameters":null}', BAD_JSON),
    raw("parameters that are a list", b'{"parameters":[]}', BAD_JSON),
    raw("a parameter twice", b'{"parameters":{"config":"{","config":"{"}}', BAD_JSON),
    still("a configuration that is an object", BAD_JSON, {"config": PYTHON_JSON}),
    still("a configuration that is a number", BAD_JSON, {"config": 3}),
    still("a configuration that is null", BAD_JSON, {"config": None}),
    still("an unknown parameter", BAD_JSON, {"confg": "x"}),
    still("a file that is a number", BAD_JSON, {"config": CONFIG, "file:1/model.py": 3}),
    still("a file alone", refusal("load-faults"), {"file:1/model.py": SOURCE}),
    still("an empty configuration", refusal("load-faults"), {"config": ""}),
    still("a configuration that is no JSON", refusal("load-faults"), {"config": "{"}),
    still("a configuration that is a list", refusal("load-faults"), {"config": "[]"}),
    still("a configuration in text format", refusal("load-faults"), {"config": 'backend: "x"'}),
    config("an unknown field", refusal("load-faults"), nmae="x"),
    config("another model's name", refusal("load-faults"), name="another"),
    config(
        "a map as a list",
        refusal("load-faults"),
        parameters=[{"key": "a", "value": {"string_value": "b"}}],
    ),
    config("a wrong enum", refusal("load-faults"), instance_group=[{"kind": "CPU"}]),
    config("a number as text", refusal("load-faults"), max_batch_size="four"),
    config("a wrong kind of number", refusal("load-faults"), max_batch_size=1.5),
    files("a file outside", refusal("load-faults"), "../model.py"),
    files("a file outside by a detour", refusal("load-faults"), "1/../../model.py"),
    files("a file without a name", refusal("load-faults"), ""),
    files("a file that is a directory", refusal("load-faults"), "1/"),
    files("a file and a directory in one", refusal("load-faults"), "1", "1/model.py"),
]
NOTHING_TO_SERVE = [
    dataclasses.replace(step, after=OnOneSide((), ("still",), "load-faults"))
    for step in (
        files("a file without a version", 400, "model.py"),
        files("a file in place of a version", 400, "1"),
    )
]


def still_grpc(what: str, expected: Any, **parameters: pb.ModelRepositoryParameter) -> Step:
    """A load of `still` over gRPC."""
    named = {key.replace("file_", "file:1/model.py"): each for key, each in parameters.items()}
    return Step(f"load over gRPC with {what}", load_grpc("still", parameters=named), expected)


VALUE = pb.ModelRepositoryParameter
GRPC_CONFIG = VALUE(string_param=CONFIG)
GRPC_FAULTS = [
    still_grpc("an unknown parameter", "INVALID_ARGUMENT", confg=VALUE(string_param="x")),
    still_grpc("a configuration as a boolean", "INVALID_ARGUMENT", config=VALUE(bool_param=True)),
    still_grpc("a configuration as bytes", "INVALID_ARGUMENT", config=VALUE(bytes_param=b"{}")),
    still_grpc("a configuration without a value", "INVALID_ARGUMENT", config=VALUE()),
    still_grpc(
        "a file as a string", "INVALID_ARGUMENT", config=GRPC_CONFIG, file_=VALUE(string_param="x")
    ),
    still_grpc(
        "a file as a number", "INVALID_ARGUMENT", config=GRPC_CONFIG, file_=VALUE(int64_param=1)
    ),
    still_grpc(
        "a file alone",
        Differs("INTERNAL", "INVALID_ARGUMENT", "load-faults"),
        file_=VALUE(bytes_param=b"x"),
    ),
    still_grpc(
        "a configuration that is no JSON",
        Differs("INTERNAL", "INVALID_ARGUMENT", "load-faults"),
        config=VALUE(string_param="{"),
    ),
    Step(
        "load from a repository by name over gRPC",
        load_grpc("still", repository_name="r"),
        "UNIMPLEMENTED",
    ),
    Step(
        "unload from a repository by name over gRPC",
        unload_grpc("still", repository_name="r"),
        "UNIMPLEMENTED",
    ),
    Step("load from a repository by name", Http("POST", "/v2/repository/r/models/still/load"), 501),
    Step(
        "unload from a repository by name",
        Http("POST", "/v2/repository/r/models/still/unload"),
        501,
    ),
]
FAULTS = Scenario(
    "faults of requests",
    ("still",),
    model("still"),
    [*HTTP_FAULTS, *GRPC_FAULTS, *NOTHING_TO_SERVE],
)

# What one side takes and the other does not.

LOADED = ("lenient/1 READY", "lenient answers")


def lenient(what: str, content: str) -> Step:
    """A load of `lenient` with a file that is no base64."""
    parameters = {"config": CONFIG, "file:1/model.py": SOURCE, "file:1/more": content}
    return Step(
        f"load with {what}",
        load("lenient", parameters),
        Differs(200, 400, "file-contents"),
        after=OnOneSide(tuple(sorted(LOADED)), ("lenient",), "file-contents"),
    )


LENIENT = Scenario(
    "base64",
    ("lenient",),
    model("lenient"),
    [
        lenient("a file that is no base64", "!!!"),
        lenient("base64 without its padding", "YWI"),
        lenient("base64 in lines", "YWJj\nYWJj\n"),
    ],
)

# Unloading.

GONE = OnOneSide(
    ("kept/1 UNAVAILABLE with a reason",), ("kept answers", "kept/1 READY"), "unload-dependents"
)


def wrong(what: str, body: bytes) -> list[Step]:
    """An unload of `kept` over HTTP that is at fault."""
    request = Http("POST", "/v2/repository/models/kept/unload", body)
    expected = Differs(200, 400, "unload-dependents")
    return [
        Step(f"unload with {what}", request, expected, after=GONE),
        Step(f"load after an unload with {what}", load("kept"), 200),
    ]


def kept_grpc(what: str, value: pb.ModelRepositoryParameter) -> Step:
    """An unload of `kept` over gRPC that is at fault."""
    request = unload_grpc("kept", parameters={"unload_dependents": value})
    return Step(f"unload over gRPC with {what}", request, "INVALID_ARGUMENT")


UNLOADS = Scenario(
    "faults of unloads",
    ("kept", "below_kept"),
    all_of(model("below_kept"), without_source("kept", ensemble("below_kept"))),
    [
        Step("load of the kept ensemble", load("kept"), 200),
        kept_grpc("text", VALUE(string_param="true")),
        kept_grpc("a number", VALUE(int64_param=1)),
        kept_grpc("no value", VALUE()),
        *wrong("text for a boolean", b'{"parameters":{"unload_dependents":"true"}}'),
        *wrong("a number for a boolean", b'{"parameters":{"unload_dependents":1}}'),
        *wrong("null for a boolean", b'{"parameters":{"unload_dependents":null}}'),
        *wrong("broken JSON", b"{"),
        *wrong("a number for its parameters", b'{"parameters":3}'),
        Step("unload with another parameter", unload("kept", {"other": "x"}), 200),
        Step("load of the kept ensemble again", load("kept"), 200),
        Step(
            "unload over gRPC with another parameter",
            unload_grpc("kept", parameters={"other": VALUE(string_param="x")}),
            "OK",
        ),
        Step("unload of what is unloaded", unload("kept"), 200),
        Step("unload of what was never loaded", unload("nobody_ever"), 200),
    ],
)

SCENARIOS = [NAMES, FAULTS, LENIENT, UNLOADS]
