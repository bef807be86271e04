"""One model name in several repositories: what both servers make of it, step by step."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from .cases import Case, Differs, Json, Seen, Status, in_any_order, judge
from .grpc_cases import metadata, ready
from .http_exchange import Http
from .life_cycle import ask, get, load, look, unload
from .life_cycle_files import DOUBLE, PYTHON, PYTHON_JSON, ensemble, model, without_source
from .life_cycle_models import ask as inference, without_parameters
from .servers import HOST, Server, Servers, both

FLAGS = ["--model-namespacing=true", "--model-control-mode=explicit", "--exit-on-error=false"]
NAMES = ("both", "only", "first", "second", "far", "torn")
INDEX = Http("POST", "/v2/repository/index")
FILES = {
    "config": json.dumps(PYTHON_JSON),
    "file:1/model.py": base64.b64encode(DOUBLE.encode()).decode(),
}


def steps(content: Json) -> Json:
    """The steps in the configuration of an ensemble, which name their namespaces."""
    return in_any_order(content["ensemble_scheduling"]["step"])


def refused(what: str, request: Any, status: Status | Differs = 400) -> Case[Any]:
    """A request for the name that two models have."""
    return Case(f"{what} of a name that two models have", request, status)


CASES: list[Case[Any]] = [
    Case("index of what was never loaded", INDEX, 200),
    Case(
        "inference of a name that two models have, never loaded",
        inference("both"),
        Differs(400, 404, "namespaces"),
    ),
    Case("load of an ensemble", load("first"), 200),
    Case("index with both models that it may need", INDEX, 200),
    Case("inference of an ensemble", inference("first"), 200, without_parameters),
    Case("load of the other ensemble", load("second"), 200),
    Case("inference of the other ensemble", inference("second"), 200, without_parameters),
    Case("steps of an ensemble", get("models/second/config"), 200, steps),
    refused("inference", inference("both")),
    refused("metadata", get("models/both")),
    refused("metadata over gRPC", metadata("both"), "INVALID_ARGUMENT"),
    refused("configuration", get("models/both/config")),
    refused("readiness", get("models/both/ready")),
    refused("readiness over gRPC", ready("both"), Differs("OK", "INVALID_ARGUMENT", "namespaces")),
    refused("statistics", get("models/both/stats")),
    Case(
        "statistics of all models",
        get("models/stats"),
        Differs(400, 200, "namespaces"),
    ),
    Case("load of an ensemble of a model elsewhere", load("far"), 200),
    Case(
        "inference of an ensemble of a model elsewhere", inference("far"), 200, without_parameters
    ),
    Case("inference of a name that one model has", inference("only"), 200),
    Case("load of an ensemble that two models could be meant by", load("torn"), 400),
    Case("load of a name that two models have", load("both"), 200),
    Case("unload of a name that two models have", unload("both"), 200),
    Case("inference of a name that was unloaded", inference("both"), 404),
    Case("inference of an ensemble without its model", inference("first"), 404),
    Case("load of both again", load("both"), 200),
    Case("inference of an ensemble with its model", inference("first"), 200, without_parameters),
    Case(
        "load of a name that two models have, with files",
        load("both", FILES),
        Differs(200, 400, "namespaces"),
    ),
]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Both servers, on three repositories."""
    directory = tmp_path_factory.mktemp("namespaces")
    one, two, three = (directory / name for name in ("one", "two", "three"))
    model("both")(one)
    model("both", PYTHON, DOUBLE)(two)
    model("only", PYTHON, DOUBLE)(two)
    for place, name, needed in (
        (one, "first", "both"),
        (two, "second", "both"),
        (three, "far", "only"),
        (three, "torn", "both"),
    ):
        without_source(name, ensemble(needed))(place)
    flags = [*FLAGS, f"--model-repository={two}", f"--model-repository={three}"]
    # Models that it could not load keep the reference from ending before that.
    with both(one, "--exit-timeout-secs=2", flags=flags) as servers:
        yield servers


@pytest.fixture(scope="module")
def seen(servers: Servers) -> dict[str, tuple[Seen, Seen]]:
    """What every case led to, one after the other: ours, and the reference's."""
    answers: dict[str, tuple[Seen, Seen]] = {}
    for case in CASES:
        answers[case.name] = ask(servers.ours, case), ask(servers.reference, case)
        for server in servers:
            look(server, NAMES)  # once nothing is on its way
    return answers


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_name_in_several_repositories_leads_to_the_same(
    case: Case[Any], seen: dict[str, tuple[Seen, Seen]]
) -> None:
    judge(case, *seen[case.name])


def labels(server: Server) -> set[tuple[tuple[str, str], ...]]:
    """The labels of the models whose requests are counted."""
    with urllib.request.urlopen(f"http://{HOST}:{server.ports.metrics}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        tuple(sorted(sample.labels.items()))
        for family in families
        for sample in family.samples
        if sample.name.startswith("nv_inference_request_success")
    }


@pytest.mark.reference
def test_metrics_have_the_repository_as_a_label(
    servers: Servers, seen: dict[str, tuple[Seen, Seen]]
) -> None:
    places = {Path(dict(pairs).get("namespace", "")).name for pairs in labels(servers.ours)}
    assert places == {"one", "two", "three"}
    # The reference has the files of the last load as one more model.
    brought = (("model", "both"), ("version", "1"))
    assert labels(servers.reference) - {brought} == labels(servers.ours)
