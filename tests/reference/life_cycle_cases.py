"""Readiness of a server whose models come and go, and servers whose models do not."""

from __future__ import annotations

from typing import Any

from .cases import BAD_JSON, Case, Differs, reasons_are_there
from .grpc_cases import index
from .http_exchange import Http
from .life_cycle import OnOneSide, Scenario, Step, get, load, load_grpc, unload, unload_grpc
from .life_cycle_files import PYTHON, RAISES, all_of, ensemble, model, without_source
from .life_cycle_requests import CONFIG, VALUE

READY = get("health/ready")
LIVE = get("health/live")
NO_TENSORS = '{"backend": "python"}'
FITS_AGAIN = OnOneSide(
    ("on_good/1 UNAVAILABLE with a reason",),
    ("on_good answers", "on_good/1 READY"),
    "ensembles-again",
)

READINESS = Scenario(
    "readiness",
    ("good", "bad", "on_good"),
    all_of(
        model("good"), model("bad", PYTHON, RAISES), without_source("on_good", ensemble("good"))
    ),
    [
        Step("ready without any model", READY, 200),
        Step("live without any model", LIVE, 200),
        Step("load of a good model", load("good"), 200),
        Step("ready with a good model", READY, 200),
        Step("unload of the good model", unload("good"), 200),
        Step("ready after the good model", READY, 200),
        Step("load of the good model again", load("good"), 200),
        Step("load of an ensemble of it", load("on_good"), 200),
        Step("load of the good model without tensors", load("good", {"config": NO_TENSORS}), 200),
        Step("ready with an ensemble that does not fit any more", READY, 200),
        Step("load of the good model as it was", load("good"), 200, after=FITS_AGAIN),
        Step("ready with an ensemble that fits again", READY, 200, after=FITS_AGAIN),
        Step("unload of the good model below its ensemble", unload("good"), 200),
        Step("ready after an ensemble that went with its model", READY, 200),
        Step("load of the good model below its ensemble", load("good"), 200),
        Step("load of a bad model", load("bad"), 400),
        Step("ready with a bad model", READY, 400),
        Step("live with a bad model", LIVE, 200),
        Step("unload of the bad model", unload("bad"), 200),
        Step("ready after the bad model", READY, Differs(400, 200, "readiness-unloaded")),
        Step("index", Http("POST", "/v2/repository/index"), 200, reasons_are_there),
        Step("index of ready ones over gRPC", index(ready=True), "OK", reasons_are_there),
        Step("index of a named repository over gRPC", index(repository_name="r"), "UNIMPLEMENTED"),
    ],
)

NOT_EXPLICIT: list[Case[Any]] = [
    Case("load of a model that failed", load("broken"), 503),
    Case("load of a bad name", load("..%2Fx"), 503),
    Case("load with a configuration", load("identity", {"config": CONFIG}), 503),
    Case("load with a bad configuration", load("identity", {"config": "{"}), 503),
    Case("load with a file alone", load("identity", {"file:1/model.py": ""}), 503),
    Case("load with an unknown parameter", load("identity", {"confg": "{}"}), BAD_JSON),
    Case("load with a configuration that is an object", load("identity", {"config": {}}), BAD_JSON),
    Case("unload of an unknown model", unload("nobody"), 503),
    Case("unload with what it needs", unload("identity", {"unload_dependents": True}), 503),
    Case(
        "unload with text for a boolean",
        unload("identity", {"unload_dependents": "true"}),
        Differs(503, 400, "unload-dependents"),
    ),
    Case("load from a named repository", Http("POST", "/v2/repository/r/models/m/load"), 501),
    Case("load of a bad name over gRPC", load_grpc("../x"), "UNAVAILABLE"),
    Case("load of no name over gRPC", load_grpc(""), "UNAVAILABLE"),
    Case(
        "load with an unknown parameter over gRPC",
        load_grpc("identity", parameters={"confg": VALUE(string_param="{}")}),
        "INVALID_ARGUMENT",
    ),
    Case(
        "unload with text for a boolean over gRPC",
        unload_grpc("identity", parameters={"unload_dependents": VALUE(string_param="true")}),
        "INVALID_ARGUMENT",
    ),
    Case("unload of an unknown model over gRPC", unload_grpc("nobody"), "UNAVAILABLE"),
    Case("the model is ready all the same", get("models/identity/ready"), 200),
]
