"""Requests to the endpoints of Vertex AI and SageMaker."""

from __future__ import annotations

import json
from typing import Any

from .cases import BAD_JSON, Case, Differs, without_counts
from .http_exchange import Http

MODEL = "echo"
INPUT: dict[str, Any] = {"name": "INPUT0", "shape": [1, 2], "datatype": "INT32"}
GOOD = json.dumps({"inputs": [{**INPUT, "data": [1, 2]}]}).encode()
BINARY_IN = json.dumps({"inputs": [{**INPUT, "parameters": {"binary_data_size": 8}}]}).encode()
BINARY_OUT = json.dumps(
    {"inputs": [{**INPUT, "data": [1, 2]}], "parameters": {"binary_data_output": True}}
).encode()
BLOB = b"AAAABBBB"
TYPE = "Content-Type: application/vnd.{}-triton.binary+json;json-header-size={}"
REDIRECT = "X-Vertex-Ai-Triton-Redirect: "

ROUTES_ROW = "cloud-routes"
LENGTHS_ROW = "cloud-lengths"
REDIRECTS_ROW = "vertex-redirects"
MODELS_ROW = "sagemaker-models"


def _predict(body: bytes, *headers: str) -> Http:
    return Http("POST", "/predict", body, headers)


def _redirected(path: str, body: bytes = b"") -> Http:
    return _predict(body, REDIRECT + path)


def _lengths(cloud: str, path: str) -> list[Case[Http]]:
    """Where the JSON part ends, and what says so."""

    def post(size: Any, body: bytes) -> Http:
        return Http("POST", path, body, (TYPE.format(cloud, size),))

    return [
        Case("binary in", post(len(BINARY_IN), BINARY_IN + BLOB), 200),
        Case("binary out", Http("POST", path, BINARY_OUT), 200),
        Case("raw", post(0, BLOB), 200),
        Case("too long", post(5000, BINARY_IN + BLOB), 400),
        Case("negative", post(-5, BINARY_IN + BLOB), 400),
        Case("no number", post("x", BLOB), Differs(200, 400, LENGTHS_ROW)),
        Case(
            "blank in the type",
            Http("POST", path, BINARY_IN + BLOB, (_blank(cloud),)),
            Differs(500, 200, LENGTHS_ROW),
        ),
        Case(
            "header of the other protocol",
            Http(
                "POST",
                path,
                BINARY_IN + BLOB,
                (f"Inference-Header-Content-Length: {len(BINARY_IN)}",),
            ),
            BAD_JSON,
        ),
        Case("accepts gzip", Http("POST", path, GOOD, ("Accept-Encoding: gzip",)), 200),
        Case("not JSON", Http("POST", path, b"x"), BAD_JSON),
        Case("JSON", Http("POST", path, GOOD), 200),
        Case("query", Http("POST", f"{path}?x=1", GOOD), 200),
        Case("GET", Http("GET", path), 405),
        Case("path behind", Http("POST", f"{path}/", GOOD), Differs(400, 400, ROUTES_ROW)),
        Case(
            "path of the other protocol",
            Http("POST", f"/v2/models/{MODEL}/infer", GOOD),
            Differs(400, 400, ROUTES_ROW),
        ),
    ]


def _blank(cloud: str) -> str:
    return TYPE.format(cloud, len(BINARY_IN)).replace(";", "; ")


VERTEX = [
    *_lengths("vertex-ai", "/predict"),
    Case("health", Http("GET", "/health"), 200),
    Case("health, POST", Http("POST", "/health"), 405),
    Case("metadata", _redirected(f"v2/models/{MODEL}"), 200),
    Case("metadata of a version", _redirected(f"v2/models/{MODEL}/versions/1"), 200),
    Case("ready", _redirected(f"v2/models/{MODEL}/ready"), 200),
    Case("not ready", _redirected(f"v2/models/{MODEL}/versions/9/ready"), 400),
    Case("statistics", _redirected(f"v2/models/{MODEL}/stats"), 200, without_counts),
    Case("statistics of all", _redirected("v2/models/stats"), 200, without_counts),
    Case("inference", _redirected(f"v2/models/{MODEL}/infer", GOOD), 200),
    Case("inference of nothing", _redirected("v2/models/none/infer", GOOD), 404),
    Case("server live", _redirected("v2/health/live"), 200),
    Case("server ready", _redirected("v2/health/ready"), 200),
    Case("index", _redirected("v2/repository/index"), 200),
    Case("shared memory", _redirected("v2/systemsharedmemory/status"), 200),
    Case("CUDA memory", _redirected("v2/cudasharedmemory/status"), 200),
    *(
        Case(f"no call: {path}", _redirected(path), Differs(400, 400, ROUTES_ROW))
        for path in ("/v2", "v2/nothing", f"v2/models/{MODEL}/generate", "v2?x=1")
    ),
    Case("log settings", _redirected("v2/logging"), Differs(400, 200, REDIRECTS_ROW)),
    Case("trace settings", _redirected("v2/trace/setting"), Differs(400, 200, REDIRECTS_ROW)),
    Case(
        "load", _redirected(f"v2/repository/models/{MODEL}/load"), Differs(200, 403, REDIRECTS_ROW)
    ),
    Case(
        "unregister",
        _redirected("v2/systemsharedmemory/unregister"),
        Differs(200, 403, REDIRECTS_ROW),
    ),
]

SAGEMAKER = [
    *_lengths("sagemaker", "/invocations"),
    Case("ping", Http("GET", "/ping"), 200),
    Case("ping, POST", Http("POST", "/ping"), 405),
]


def _load(name: Any, url: str) -> Http:
    return Http("POST", "/models", json.dumps({"model_name": name, "url": url}).encode())


def models(place: str) -> list[Case[Http]]:
    """Models that come and go, in this order.

    Args:
      place: A directory with `one`, `other`, `two`, `greedy`, `none` and `ensemble`.
    """
    target = "X-Amzn-SageMaker-Target-Model: "

    def invoke(name: str, body: bytes = GOOD, *headers: str) -> Http:
        return Http("POST", f"/models/{name}/invoke", body, headers)

    def listed(*names: str) -> dict[str, Any]:
        entries = [{"modelName": name, "modelUrl": f"{place}/{name}"} for name in names]
        return {"models": entries}

    return [
        Case("nothing yet", Http("GET", "/models"), _typed(listed())),
        Case("get nothing", Http("GET", "/models/one"), Differs(404, 404, ROUTES_ROW)),
        Case("load", _load("one", f"{place}/one"), 200),
        Case("list", Http("GET", "/models"), _typed(listed("one"))),
        Case("get", Http("GET", "/models/one"), _typed(listed("one")["models"][0])),
        Case("same name", _load("one", f"{place}/other"), 409),
        Case("same place", _load("two", f"{place}/one"), 409),
        Case("invoke", invoke("one"), 200),
        Case("invoke, binary", invoke("one", BINARY_OUT), 200),
        Case("invoke, not JSON", invoke("one", b"x"), 400),
        Case("invoke, no such target", invoke("one", GOOD, target + "none"), 400),
        Case("invoke nothing", invoke("none"), Differs(404, 404, ROUTES_ROW)),
        Case("ensemble", _load("ensemble", f"{place}/ensemble"), 200),
        Case("invoke its step", invoke("ensemble", GOOD, target + "inner"), 200),
        Case("no place", _load("a", f"{place}/nowhere"), 400),
        Case("empty place", _load("a", f"{place}/none"), 400),
        Case("no url", Http("POST", "/models", b'{"model_name":"a"}'), 400),
        Case("devices", _load("a", "/dev/shm"), 400),
        Case("traversal", _load("../a", f"{place}/two"), Differs(200, 400, MODELS_ROW)),
        Case("greedy", _load("greedy", f"{place}/greedy"), 507),
        Case("unload", Http("DELETE", "/models/one"), 200),
        Case("unload again", Http("DELETE", "/models/one"), Differs(404, 404, ROUTES_ROW)),
        Case("invoke it", invoke("one"), Differs(404, 404, ROUTES_ROW)),
        Case("rubbish", Http("POST", "/models", b"x"), Differs(None, 400, "reference-crashes")),
        Case("number", _load(1, f"{place}/two"), Differs(None, 400, "reference-crashes")),
    ]


def _typed(content: Any) -> Differs:
    return Differs((200, content), (200, content), ROUTES_ROW)
