"""Models that come, change and go: overrides, reloads, versions, ensembles and what they need."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from .cases import Differs, Json, in_any_order
from .grpc_cases import metadata, ready
from .http_exchange import Http
from .http_requests import infer
from .life_cycle import OnOneSide, Scenario, Step, get, load, load_grpc, unload, unload_grpc
from .life_cycle_files import (
    DOUBLE,
    ECHO,
    PYTHON,
    PYTHON_JSON,
    RAISES,
    all_of,
    ensemble,
    model,
    nothing,
    removed,
    without_source,
)

VALUE = pb.ModelRepositoryParameter
DEPENDENTS = {"unload_dependents": True}


def ask(name: str) -> Http:
    """An inference with two numbers."""
    tensor = {"name": "INPUT0", "shape": [2], "datatype": "FP32", "data": [1.5, 2]}
    return infer({"inputs": [tensor]}, name)


def counted(content: Json) -> Json:
    """Statistics without times, and without what is always there."""
    return [
        {
            "version": entry["version"],
            "inferences": entry["inference_count"],
            "executions": entry["execution_count"],
            "successes": entry["inference_stats"]["success"]["count"],
        }
        for entry in content["model_stats"]
    ]


def stats(what: str, name: str) -> Step:
    return Step(what, get(f"models/{name}/stats"), 200, counted)


def answer(name: str, *values: float) -> dict[str, Any]:
    """What `ask` gets from a model without batches."""
    output = {"name": "OUTPUT0", "datatype": "FP32", "shape": [2], "data": list(values)}
    return {"model_name": name, "model_version": "1", "outputs": [output]}


def without_parameters(content: Json) -> Json:
    """An inference response without what ensembles of the reference always say."""
    return {key: value for key, value in content.items() if key != "parameters"}


# Overrides.


def changed_config(**changes: Any) -> dict[str, str]:
    return {"config": json.dumps({**PYTHON_JSON, **changes})}


def with_source(source: str, version: str = "1", **changes: Any) -> dict[str, str]:
    content = base64.b64encode(source.encode()).decode()
    return {**changed_config(**changes), f"file:{version}/model.py": content}


def as_messages(parameters: dict[str, str]) -> dict[str, pb.ModelRepositoryParameter]:
    return {
        key: VALUE(string_param=text)
        if key == "config"
        else VALUE(bytes_param=base64.b64decode(text))
        for key, text in parameters.items()
    }


def kept(name: str) -> OnOneSide:
    """What serves on since its reload failed; we say so."""
    return OnOneSide((f"{name}/1 READY",), (f"{name}/1 READY with a reason",), "failed-reloads")


NO_DIMS = {"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [0]}
TAGGED: dict[str, Any] = {"parameters": {"tag": {"string_value": "files"}}}
"""Makes a configuration another one."""

OVERRIDES = Scenario(
    "overrides",
    ("over",),
    model("over"),
    [
        Step("metadata of a model that was never loaded", get("models/over"), 404),
        Step("inference of a model that was never loaded", ask("over"), 404),
        Step("statistics of a model that was never loaded", get("models/over/stats"), 400),
        Step("a first load", load("over"), 200),
        Step("a first inference", ask("over"), 200),
        Step("configuration from the disk", get("models/over/config"), 200, in_any_order),
        Step("load with a configuration", load("over", changed_config(max_batch_size=4)), 200),
        Step("metadata of the override", get("models/over"), 200),
        Step("metadata of the override over gRPC", metadata("over"), "OK"),
        Step("configuration of the override", get("models/over/config"), 200, in_any_order),
        stats("statistics of the override", "over"),
        Step("load with its own name", load("over", changed_config(name="over")), 200),
        Step(
            "load of a configuration that fails",
            load("over", changed_config(output=[NO_DIMS])),
            400,
            after=kept("over"),
        ),
        Step("inference after a configuration that failed", ask("over"), 200, after=kept("over")),
        Step("load of what lies on the disk", load("over"), 200),
        Step("metadata from the disk again", get("models/over"), 200),
    ],
)

FILES = Scenario(
    "files",
    ("brought",),
    model("brought"),
    [
        Step("load of what files will replace", load("brought"), 200),
        Step(
            "load with files and a configuration over gRPC",
            load_grpc("brought", parameters=as_messages(with_source(DOUBLE, **TAGGED))),
            "OK",
        ),
        Step("inference by the files", ask("brought"), 200),
        Step(
            "load with files that fail",
            load("brought", with_source(RAISES)),
            400,
            after=kept("brought"),
        ),
        Step("inference after files that failed", ask("brought"), 200, after=kept("brought")),
        Step("load of the disk after the files", load("brought"), 200),
        Step("inference from the disk", ask("brought"), 200),
        Step(
            "load with files and no other configuration", load("brought", with_source(DOUBLE)), 200
        ),
        Step(
            "inference by files with no other configuration",
            ask("brought"),
            Differs(
                (200, answer("brought", 1.5, 2)), (200, answer("brought", 3, 4)), "override-files"
            ),
        ),
        Step("load with another version", load("brought", with_source(ECHO, "2")), 200),
        Step("inference by the other version", ask("brought"), 200),
        Step("load of the disk after the other version", load("brought"), 200),
        Step("inference from the disk again", ask("brought"), 200),
    ],
)

NOWHERE = Scenario(
    "models that lie nowhere",
    ("ghost",),
    nothing,
    [
        Step("load of a model that lies nowhere", load("ghost", with_source(DOUBLE)), 200),
        Step("inference of a model that lies nowhere", ask("ghost"), 200),
        Step("metadata of a model that lies nowhere", get("models/ghost"), 200),
        Step("load from where it does not lie", load("ghost"), 500),
        Step(
            "what lies somewhere now is listed",
            get("models/ghost"),
            200,
            edit=model("ghost"),
        ),
        Step("unload of a model that lies nowhere", unload("ghost"), 200, edit=removed("ghost")),
        Step("load of it once more", load("ghost"), 500),
    ],
)

# Reloads.

RELOADS = Scenario(
    "reloads",
    ("changing",),
    model("changing"),
    [
        Step("load of what will change", load("changing"), 200),
        # The reference takes the cache of compiled files, which its first load left, for a change.
        Step("load of what will change, once more", load("changing"), 200),
        Step("inference before a change", ask("changing"), 200),
        Step("load without a change", load("changing"), 200),
        stats("statistics after no change", "changing"),
        Step("load after a change", load("changing"), 200, edit=model("changing", source=DOUBLE)),
        stats("statistics after a change", "changing"),
        Step("inference after a change", ask("changing"), 200),
        Step(
            "load of what was broken",
            load("changing"),
            400,
            edit=model("changing", None, RAISES),
            after=kept("changing"),
        ),
        Step("inference while it is broken", ask("changing"), 200, after=kept("changing")),
        dataclasses.replace(
            stats("statistics while it is broken", "changing"), after=kept("changing")
        ),
        Step(
            "load while it is broken, over gRPC",
            load_grpc("changing"),
            "INVALID_ARGUMENT",
            after=kept("changing"),
        ),
        Step("load of what was mended", load("changing"), 200, edit=model("changing", None)),
        stats("statistics of what was mended", "changing"),
        Step("inference of what was mended", ask("changing"), 200),
        Step(
            "load of a configuration that was broken",
            load("changing"),
            Differs(500, 400, "load-faults"),
            edit=without_source("changing", "oops: 1"),
            after=kept("changing"),
        ),
        Step(
            "inference beside a broken configuration", ask("changing"), 200, after=kept("changing")
        ),
        Step(
            "load of a configuration that was mended",
            load("changing"),
            200,
            edit=without_source("changing", PYTHON),
        ),
        Step(
            "load of more instances",
            load("changing"),
            200,
            edit=without_source("changing", PYTHON + "instance_group { kind: KIND_CPU count: 2 }"),
        ),
        Step("configuration of more instances", get("models/changing/config"), 200, in_any_order),
        Step("load of what was removed", load("changing"), 500, edit=removed("changing")),
        Step("inference of what was removed", ask("changing"), 200),
        Step("unload of what was removed", unload("changing"), 200),
        Step("load of what is gone", load("changing"), 500),
    ],
)

# Versions: those of ensembles, which load at once.


def policy(text: str, *versions: str) -> Any:
    config = ensemble("below_pick", more=f"version_policy {{ {text} }}" if text else "")
    return without_source("pick", config, versions)


NONE_SELECTED = OnOneSide(("pick/2 READY",), ("pick/2 READY with a reason",), "failed-reloads")
MINUS_THREE = OnOneSide(("pick READY",), (), "version-directories")
MINUS_THREE_GONE = OnOneSide(("pick UNAVAILABLE with a reason",), (), "version-directories")

VERSIONS = Scenario(
    "versions",
    ("pick", "below_pick"),
    all_of(model("below_pick"), policy("", "1", "2", "10")),
    [
        Step("load of the latest version", load("pick"), 200),
        Step("metadata of the latest version", get("models/pick"), 200),
        Step("a version that was not selected is ready", get("models/pick/versions/2/ready"), 400),
        Step("load of two versions", load("pick"), 200, edit=policy("latest { num_versions: 2 }")),
        Step("metadata of two versions", get("models/pick"), 200),
        Step("load of all versions", load("pick"), 200, edit=policy("all { }")),
        Step("metadata of all versions", get("models/pick"), 200),
        Step("a version over gRPC", ready("pick", "2"), "OK"),
        Step("inference by the latest version", ask("pick"), 200, without_parameters),
        Step("load of a version more", load("pick"), 200, edit=policy("all { }", "11")),
        Step("inference by the version more", ask("pick"), 200, without_parameters),
        stats("statistics of every version", "pick"),
        Step(
            "load of specific versions",
            load("pick"),
            200,
            edit=policy("specific { versions: [1, 10] }"),
        ),
        Step("metadata of specific versions", metadata("pick"), "OK"),
        Step(
            "load of a version that is missing",
            load("pick"),
            200,
            edit=policy("specific { versions: [2, 7] }"),
        ),
        Step(
            "load of no version",
            load("pick"),
            400,
            edit=policy("specific { versions: [7] }"),
            after=NONE_SELECTED,
        ),
        Step(
            "load of the latest version again",
            load("pick"),
            200,
            edit=policy(""),
        ),
        Step("load without the latest version", load("pick"), 200, edit=removed("pick/11")),
        Step("a version that was replaced", get("models/pick/versions/2/ready"), 400),
        Step("metadata without the latest version", get("models/pick"), 200),
        Step(
            "load with names that are no versions",
            load("pick"),
            200,
            edit=policy("all { }", "0", "012", "latest", "-3", ".hidden"),
            after=MINUS_THREE,
        ),
        Step("version 0", get("models/pick/versions/0/ready"), 200, after=MINUS_THREE),
        Step("unload of every version", unload("pick"), 200, after=MINUS_THREE_GONE),
    ],
)

# Ensembles and what they need.

DEEP = all_of(
    model("leaf"),
    without_source("one", ensemble("leaf")),
    without_source("two", ensemble("leaf")),
    without_source("deep", ensemble("one", "leaf")),
    without_source("lost", ensemble("no_such_model")),
)

LOST = OnOneSide(("lost",), ("lost UNAVAILABLE with a reason",), "load-faults")

ENSEMBLES = Scenario(
    "ensembles",
    ("leaf", "one", "two", "deep", "lost"),
    DEEP,
    [
        Step("load of an ensemble", load("one"), 200),
        Step("inference of an ensemble", ask("one"), 200, without_parameters),
        Step("unload of an ensemble alone", unload("one"), 200),
        Step("load of two ensembles: one", load("one"), 200),
        Step("load of two ensembles: two", load_grpc("two"), "OK"),
        Step("unload of one with what it needs", unload("one", DEPENDENTS), 200),
        Step("the other goes on", ask("two"), 200, without_parameters),
        Step(
            "unload of the other with what it needs",
            unload_grpc("two", parameters={"unload_dependents": VALUE(bool_param=True)}),
            "OK",
        ),
        Step("load of what an ensemble needs", load("leaf"), 200),
        Step("load of an ensemble on top", load("one"), 200),
        Step("unload of it with what was loaded before", unload("one", DEPENDENTS), 200),
        Step("load of an ensemble on top again", load("one"), 200),
        Step("unload of what an ensemble needs", unload("leaf"), 200),
        Step("inference of an ensemble without it", ask("one"), 404),
        Step("load of it again", load("leaf"), 200),
        Step("inference of the ensemble with it", ask("one"), 200, without_parameters),
        Step("load of an ensemble of ensembles", load("deep"), 200),
        Step("inference of an ensemble of ensembles", ask("deep"), 200, without_parameters),
        Step("unload of the ensemble in it", unload("one"), 200),
        Step("load of the ensemble in it", load("one"), 200),
        Step("unload of all with what they need", unload("deep", DEPENDENTS), 200),
        Step("unload of the rest", unload("one"), 200),
        Step("unload of the leaf", unload("leaf"), 200),
        Step("load of an ensemble of nothing", load("lost"), 400, after=LOST),
        Step(
            "load of an ensemble that another brings",
            load(
                "one",
                {
                    "config": json.dumps(
                        {
                            **PYTHON_JSON,
                            "backend": "",
                            "platform": "ensemble",
                            "ensemble_scheduling": {
                                "step": [
                                    {
                                        "model_name": "../../etc",
                                        "model_version": -1,
                                        "input_map": {"INPUT0": "INPUT0"},
                                        "output_map": {"OUTPUT0": "OUTPUT0"},
                                    }
                                ]
                            },
                        }
                    )
                },
            ),
            400,
            after=LOST,
        ),
    ],
)

SCENARIOS = [OVERRIDES, FILES, NOWHERE, RELOADS, VERSIONS, ENSEMBLES]
