"""Cases of ensembles."""

from __future__ import annotations

from typing import Any

from .cases import Case, Differs, Json, Mask, in_any_order
from .grpc_exchange import Call
from .grpc_requests import stream
from .http_api_cases import get, post
from .http_exchange import Http
from .scheduling_ensembles import ENSEMBLES, FAULTY
from .scheduling_repository import MODELS, UNCACHEABLE
from .scheduling_requests import call, give, part, post as infer, script
from .scripts import GIVEN_BY_ENSEMBLES, Ask, Hold, Pause, Queue, Release, Script

INVALID = "INVALID_ARGUMENT"
PARAMETERS = "ensemble-parameters"
OUTPUTS = "ensemble-outputs"
FAULTS = "load-faults"
FINALS: dict[str, Any] = {"triton_enable_empty_final_response": True}
CACHED_S = 0.1
"""By then an answer is in the cache."""


def asked_for(content: Json) -> Json:
    """The outputs that the one request of the first answer asked its model for."""
    (request,) = content["answers"][0]["facts"][1]["batch"]
    return {"asked for": request["outputs"]}


ANSWERS: list[Case[Script]] = [
    script("one step", Ask(give("one_step", 5, name="me")), watch="one_step increase"),
    script("a chain", Ask(give("chain", 5)), watch="chain increase"),
    script(
        "a chain for one output",
        Ask(give("chain", 5, outputs=["OTHER"])),
        watch="chain increase",
    ),
    script("branches", Ask(give("branches", 5)), watch="branches increase plain pair"),
    *(
        script(
            f"only the side of {output}",
            Ask(give("sides", 5, outputs=[output])),
            watch="sides increase plain",
        )
        for output in ("LEFT", "RIGHT")
    ),
    *(
        script(
            f"branches for {' and '.join(outputs)}",
            Ask(give("branches", 5, outputs=outputs)),
            expected=Differs(
                ("OK", {"statuses": [INVALID]}), ("OK", {"statuses": ["OK"]}), OUTPUTS
            ),
        )
        for outputs in (["LEFT"], ["RIGHT"], ["JOINED"], ["LEFT", "RIGHT"])
    ),
    script(
        "a step is asked for what is needed",
        Ask(give("watched", outputs=["FACTS"])),
        expected=Differs(
            ("OK", {"asked for": ["FACTS", "OUTPUT0"]}), ("OK", {"asked for": ["FACTS"]}), OUTPUTS
        ),
        mask=asked_for,
    ),
    script("rows", Ask(give("rows", [1, 2, 3])), Ask(give("rows", 4)), watch="rows increase4"),
    script("rows into a column", Ask(give("mixed", [1, 2, 3])), watch="mixed increase4 column"),
    script("nested", Ask(give("nested", 1)), watch="nested chain one_step increase"),
    script(
        "what a step sees",
        Ask(give("watched", name="me", custom="a", number=3, timeout=10**6, priority=2)),
        Ask(part("watched", 4, "start")),
        Ask(part("watched", "text", "end")),
        Ask(give("watched", outputs=["OUTPUT0"])),
        Ask(give("watched", outputs=["FACTS", "OUTPUT0"])),
    ),
    script(
        "optional inputs",
        Ask(give("optional", 1)),
        Ask(give("optional", 1, extra=77)),
        watch="optional pair",
    ),
    script(
        "a step waits in its model's queue",
        Hold(give("watched", 1)),
        Queue(give("watched", 2), at="plain"),
        Queue(give("plain", 3)),
        Release(),
        watch="watched plain",
    ),
    script(
        "a whole answer from the cache",
        Ask(give("cached_whole", 4)),
        Pause(CACHED_S),
        Ask(give("cached_whole", 4, name="b")),
        watch="cached_whole increase",
    ),
    script(
        "a step's answer from the cache",
        Ask(give("cached_step", 81)),
        Pause(CACHED_S),
        Ask(give("cached_step", 81, name="b")),
        watch="cached_step cached",
    ),
    script(
        "a sequence through an ensemble",
        Ask(give("in_sequence")),
        Ask(part("in_sequence", 3, "middle")),
        Ask(part("in_sequence", 3, "start", 1)),
        Ask(part("in_sequence", 3, "middle", 2)),
        Ask(part("in_sequence", 3, "end", 3)),
        Ask(part("in_sequence", 3, "middle", 4)),
    ),
    script(
        "a missing output that nobody asked for",
        Ask(give("watched", mode="no OUTPUT0")),
        watch="watched plain",
    ),
]

CALLS: list[Case[Call]] = [
    Case("an unknown output", call(give("one_step", outputs=["NOPE"])), INVALID),
    Case("an output of the chain's middle", call(give("chain", outputs=["middle"])), INVALID),
    Case("two elements", call(give("one_step", [1, 2])), INVALID),
    Case("too many rows", call(give("rows", [1] * 5)), INVALID),
    *(
        Case(f"a step answers {code}", call(give("failing", mode=code)), code_of)
        for code, code_of in {
            "INVALID_ARG": INVALID,
            "UNAVAILABLE": "UNAVAILABLE",
            "NOT_FOUND": "NOT_FOUND",
            "INTERNAL": "INTERNAL",
            "UNSUPPORTED": "UNIMPLEMENTED",
            "ALREADY_EXISTS": "ALREADY_EXISTS",
            "raise": "INTERNAL",
        }.items()
    ),
    Case("a missing tensor between steps", call(give("failing", mode="no OUTPUT0")), INVALID),
    Case(
        "a missing output",
        call(give("watched", mode="no OUTPUT0", outputs=["OUTPUT0"])),
        Differs("OK", INVALID, OUTPUTS),
    ),
    Case(
        "a missing output among others",
        call(give("watched", mode="no OUTPUT0", outputs=["OUTPUT0", "FACTS"])),
        Differs("OK", INVALID, OUTPUTS),
    ),
    Case("a stream without a stream", call(give("stream")), "UNIMPLEMENTED"),
    Case("an unsaid stream without a stream", call(give("stream_unsaid")), "UNIMPLEMENTED"),
]


def responses(content: Json) -> Json:
    """Only data and ids: which response says that it is the final one depends on luck."""
    kept = [
        {
            "id": reply["infer_response"]["id"],
            "outputs": reply["infer_response"]["outputs"],
            "raw": reply["infer_response"]["raw_output_contents"],
        }
        for reply in content
        if reply["infer_response"]["outputs"]
    ]
    final = content[-1]["infer_response"]["parameters"].get("triton_final_response")
    return {"responses": kept, "final": final}


STREAMS: list[Case[Call]] = [
    *(
        Case(
            f"{model} of {count}",
            stream(give(model, count, name="a", **FINALS)),
            "OK",
            responses,
        )
        for model in ("stream", "stream_unsaid", "stream_twice")
        for count in (0, 1, 3)
    ),
    Case(
        "two requests on a stream",
        stream(*(give("stream", count, name=str(count), **FINALS) for count in (2, 1))),
        "OK",
        responses,
    ),
]


def without_parameters(content: Json) -> Json:
    """The answer without what ensembles of the reference add."""
    given = content.get("parameters", {})
    kept = {name: value for name, value in given.items() if name not in GIVEN_BY_ENSEMBLES}
    rest = {name: value for name, value in content.items() if name != "parameters"}
    return rest | ({"parameters": kept} if kept else {})


def failing(mode: str) -> Http:
    """`failing` over HTTP."""
    return post(
        "/v2/models/failing/infer",
        b'{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]},'
        b' {"name": "MODE", "datatype": "BYTES", "shape": [1], "data": ["%s"]}]}' % mode.encode(),
    )


CLASSES = [{"name": "OUTPUT0", "parameters": {"classification": 1}}]
OVER_HTTP: list[Case[Http]] = [
    Case("one step", infer("one_step", 3), 200, without_parameters),
    Case(
        "an ensemble's parameters",
        infer("one_step", 3),
        Differs(
            (
                200,
                {"parameters": {"sequence_id": 0, "sequence_start": False, "sequence_end": False}},
            ),
            (200, {"parameters": None}),
            PARAMETERS,
        ),
    ),
    Case("labels of a step", infer("labelled", 0, outputs=CLASSES), 200, without_parameters),
    Case("classes without labels", infer("chain", 4, outputs=CLASSES), 200, without_parameters),
    Case("a stream", infer("stream", 1), 501),
    *(
        Case(f"a step answers {mode}", failing(mode), status)
        for mode, status in {
            "INVALID_ARG": 400,
            "UNAVAILABLE": 503,
            "NOT_FOUND": 404,
            "INTERNAL": 500,
            "raise": 500,
        }.items()
    ),
]


def without_later_fields(content: Json) -> Json:
    """A configuration in alphabetical order, without what the reference is too old to know."""
    content.get("ensemble_scheduling", {}).pop("max_inflight_requests", None)
    return in_any_order(content)


def initial_dims(content: Json) -> Json:
    """The dims of the initial state."""
    (state,) = content["sequence_batching"]["state"]
    return {"dims": state["initial_state"][0]["dims"]}


def config(name: str) -> Http:
    """The configuration of a model."""
    return get(f"/v2/models/{name}/config")


GOOD = [name for name in (*MODELS, *ENSEMBLES) if name not in UNCACHEABLE]
DESCRIBED: list[Case[Http]] = [
    *(
        Case(f"configuration of {name}", config(name), 200, without_later_fields)
        for name in GOOD
        if name != "stateful"
    ),
    Case(
        "dims of an initial state",
        config("stateful"),
        Differs((200, {"dims": ["1"]}), (200, {"dims": [1]}), "initial-state-dims"),
        initial_dims,
    ),
    *(Case(f"metadata of {name}", get(f"/v2/models/{name}"), 200) for name in GOOD),
]


def entry(name: str) -> Mask:
    """Takes one model out of the index, its reason as a mere presence."""

    def mask(content: Json) -> Json:
        (found,) = [one for one in content if one["name"] == name]
        if found.get("reason"):
            found["reason"] = "a text"
        return dict(found)

    return mask


FAILED: list[Case[Http]] = [
    *(
        Case(
            f"index of {name}",
            post("/v2/repository/index", b"{}"),
            Differs(
                (200, {"name": name, "state": None, "reason": None}),
                (200, {"name": name, "state": "UNAVAILABLE", "reason": "a text"}),
                FAULTS,
            ),
            entry(name),
        )
        for name in (*FAULTY, *UNCACHEABLE)
    ),
    *(
        Case(f"{name} is ready", get(f"/v2/models/{name}/ready"), 400)
        for name in (*FAULTY, *UNCACHEABLE)
    ),
]
