"""Cases for everything but inference: health, metadata, configuration, statistics, repository."""

from __future__ import annotations

from .cases import BAD_JSON, Case, Differs, in_any_order, reasons_are_there, without_counts
from .http_exchange import Http
from .repository import MODELS

READY_MODELS = [name for name in MODELS if name not in {"broken", "counted"}]


def get(path: str, *headers: str) -> Http:
    return Http("GET", path, headers=headers, framed=False)


def post(path: str, body: bytes = b"") -> Http:
    return Http("POST", path, body)


HEALTH = [
    Case("live", get("/v2/health/live"), 200),
    Case("ready", get("/v2/health/ready"), 200),
    Case("a model is ready", get("/v2/models/identity/ready"), 200),
    Case("a version is ready", get("/v2/models/versions/versions/3/ready"), 200),
    Case("a version that is not selected", get("/v2/models/versions/versions/2/ready"), 400),
    Case("a version that does not exist", get("/v2/models/identity/versions/9/ready"), 400),
    Case("an unknown model is ready", get("/v2/models/nobody/ready"), 400),
    Case("a model that failed to load is ready", get("/v2/models/broken/ready"), 400),
    Case("a version that failed to load", get("/v2/models/broken/versions/1/ready"), 400),
    Case("version 0", get("/v2/models/identity/versions/0/ready"), 400),
    Case(
        "version -1",
        get("/v2/models/identity/versions/-1/ready"),
        Differs(404, 400, "version-text"),
    ),
    Case(
        "version x", get("/v2/models/identity/versions/x/ready"), Differs(404, 400, "version-text")
    ),
    Case("version 01", get("/v2/models/identity/versions/01/ready"), 200),
    Case("version beyond int64", get(f"/v2/models/identity/versions/{10**20}/ready"), 400),
]

METADATA = [
    Case(
        "server metadata",
        get("/v2"),
        Differs((200, {"name": "triton"}), (200, {"name": "triton"}), "extensions"),
    ),
    *(Case(f"metadata of {name}", get(f"/v2/models/{name}"), 200) for name in READY_MODELS),
    Case("metadata of a version", get("/v2/models/versions/versions/1"), 200),
    Case("metadata of an unknown version", get("/v2/models/versions/versions/2"), 404),
    Case(
        "metadata of version x",
        get("/v2/models/identity/versions/x"),
        Differs(404, 400, "version-text"),
    ),
    Case("metadata of an unknown model", get("/v2/models/nobody"), 404),
    Case("metadata of a model that failed to load", get("/v2/models/broken"), 404),
    Case("a query string is ignored", get("/v2/models/identity?a=b&c"), 200),
]

CONFIG = [
    *(
        Case(f"configuration of {name}", get(f"/v2/models/{name}/config"), 200, in_any_order)
        for name in MODELS
        if name != "broken"
    ),
    Case(
        "configuration of a version",
        get("/v2/models/versions/versions/3/config"),
        200,
        in_any_order,
    ),
    Case("configuration of an unknown version", get("/v2/models/identity/versions/2/config"), 404),
    Case("configuration of an unknown model", get("/v2/models/nobody/config"), 404),
    Case("configuration of a model that failed", get("/v2/models/broken/config"), 404),
]

STATISTICS = [
    Case("statistics of a model", get("/v2/models/identity/stats"), 200, without_counts),
    Case(
        "statistics of a version", get("/v2/models/versions/versions/3/stats"), 200, without_counts
    ),
    Case("statistics of two versions", get("/v2/models/versions/stats"), 200, without_counts),
    Case("statistics of every model", get("/v2/models/stats"), 200, without_counts),
    Case("statistics of an unknown model", get("/v2/models/nobody/stats"), 400),
    Case("statistics of an unknown version", get("/v2/models/identity/versions/2/stats"), 400),
    Case("statistics of a model that failed", get("/v2/models/broken/stats"), 400),
]

REPOSITORY = [
    Case("index without a body", post("/v2/repository/index"), 200, reasons_are_there),
    Case("index of an empty object", post("/v2/repository/index", b"{}"), 200, reasons_are_there),
    Case(
        "index of ready ones",
        post("/v2/repository/index", b'{"ready":true}'),
        200,
        reasons_are_there,
    ),
    Case("index of all", post("/v2/repository/index", b'{"ready":false}'), 200, reasons_are_there),
    Case("index with ready as a string", post("/v2/repository/index", b'{"ready":"x"}'), BAD_JSON),
    Case("index with broken JSON", post("/v2/repository/index", b"{"), BAD_JSON),
    Case("index of a named repository", post("/v2/repository/r/index"), 200, reasons_are_there),
    Case("load without explicit control", post("/v2/repository/models/identity/load"), 503),
    Case("unload without explicit control", post("/v2/repository/models/identity/unload"), 503),
    Case("load of an unknown model", post("/v2/repository/models/nobody/load"), 503),
]

_VERBS = [
    ("POST", "/v2"),
    ("POST", "/v2/health/live"),
    ("HEAD", "/v2/health/live"),
    ("OPTIONS", "/v2/health/ready"),
    ("POST", "/v2/models/identity"),
    ("DELETE", "/v2/models/identity"),
    ("POST", "/v2/models/identity/ready"),
    ("PUT", "/v2/models/identity/config"),
    ("POST", "/v2/models/identity/stats"),
    ("POST", "/v2/models/stats"),
    ("GET", "/v2/models/identity/infer"),
    ("HEAD", "/v2/models/identity/infer"),
    ("PUT", "/v2/models/identity/infer"),
    ("PATCH", "/v2/models/identity/infer"),
    ("GET", "/v2/models/nobody/infer"),
    ("GET", "/v2/repository/index"),
    ("PUT", "/v2/repository/models/identity/load"),
    ("GET", "/v2/repository/models/identity/unload"),
]

_UNKNOWN = [
    "/",
    "/v1",
    "/v2/",
    "//v2",
    "/v2/nothing",
    "/v2/health",
    "/v2/health/ready/",
    "/v2/models",
    "/v2/models/",
    "/v2/models/identity/",
    "/v2/models/identity/nothing",
    "/v2/models/identity/versions",
    "/v2/models/identity/versions/",
    "/v2/models/identity/versions/1/nothing",
    "/v2/models/identity/ready/more",
    "/v2/repository",
    "/V2/health/live",
]

ROUTES = [
    *(Case(f"{verb} {path}", Http(verb, path), 405) for verb, path in _VERBS),
    *(Case(f"no route {path}", get(path), 404) for path in _UNKNOWN),
    Case("an escaped name", get("/v2/models/ident%69ty/ready"), Differs(400, 200, "escapes")),
    Case("a broken escape", get("/v2/models/identity%/ready"), 400),
]

CASES: list[Case[Http]] = [*HEALTH, *METADATA, *CONFIG, *STATISTICS, *REPOSITORY, *ROUTES]
