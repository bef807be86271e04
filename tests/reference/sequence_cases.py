"""Cases of the sequence batcher: errors, what a model sees, one sequence at a time."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2 as pb

from .cases import Case, Differs, Json
from .grpc_exchange import Call
from .grpc_requests import request, stream, tensor
from .http_exchange import Http
from .scheduling_requests import call, give, part, post, script, without_place
from .scripts import Ask, Pause, Script

KINDS = ("direct", "direct_one", "oldest", "oldest_one")
BATCHING = ("direct", "oldest")
ID_CHARS_MAX = 128
LONG = "i" * ID_CHARS_MAX
IDS = "sequence-ids"
INVALID = "INVALID_ARGUMENT"


def bad_id(name: str, value: Any) -> list[Case[Call]]:
    """Refused by every kind."""
    return [
        Case(f"{kind}: {name}", call(give(kind, sequence_id=value, sequence_start=True)), INVALID)
        for kind in KINDS
    ]


ERRORS: list[Case[Call]] = [
    *(Case(f"{kind}: no id", call(give(kind)), INVALID) for kind in KINDS),
    *(
        Case(f"{kind}: no id but a start", call(give(kind, sequence_start=True)), INVALID)
        for kind in KINDS
    ),
    *bad_id("id 0", 0),
    *bad_id("an empty id", ""),
    *(Case(f"{kind}: unknown", call(part(kind, 900, "middle")), INVALID) for kind in KINDS),
    *(Case(f"{kind}: unknown end", call(part(kind, 900, "end")), INVALID) for kind in KINDS),
    *(
        Case(f"{kind}: two rows", call(part(kind, 900, "only", [1, 2])), INVALID)
        for kind in BATCHING
    ),
    *(Case(f"{kind}: two rows, no id", call(give(kind, [1, 2])), INVALID) for kind in BATCHING),
    *(
        Case(f"{kind}: too many rows", call(part(kind, 900, "only", [1] * 5)), INVALID)
        for kind in BATCHING
    ),
    Case(
        "an id in the wrong field",
        call(give("direct", sequence_id=pb.InferParameter(uint64_param=9), sequence_start=True)),
        INVALID,
    ),
    Case("an id that is a bool", call(give("direct", sequence_id=True)), INVALID),
    Case("an id that is a double", call(give("direct", sequence_id=1.0)), INVALID),
    Case("a start that is text", call(give("direct", sequence_id=9, sequence_start="1")), INVALID),
    Case("an end that is a number", call(give("direct", sequence_id=9, sequence_end=1)), INVALID),
    Case("an id too long", call(part("no_id", LONG + "i", "only")), "UNIMPLEMENTED"),
    Case("an id too long for plain", call(part("plain", LONG + "i", "only")), "UNIMPLEMENTED"),
    Case("a number for a text id", call(part("id_text", 5, "only")), INVALID),
    Case(
        "a text for a number",
        call(part("direct_one", "abc", "only")),
        Differs(None, INVALID, "reference-crashes"),
    ),
    Case(
        "an input with a control's name",
        call(
            request(
                [
                    tensor("INPUT0", "INT32", [1], {"int_contents": [1]}),
                    tensor("START", "INT32", [1], {"int_contents": [1]}),
                ],
                model="direct_one",
                parameters={"sequence_id": 9, "sequence_start": True},
            )
        ),
        INVALID,
    ),
    Case("iterative: two rows", call(give("iterate4", [1, 1])), INVALID),
    Case("iterative: an id without start", call(part("iterate", 9, "middle")), INVALID),
    Case("iterative: an end without start", call(part("iterate", 9, "end")), INVALID),
    Case(
        "an ordinary model takes rows",
        call(part("plain4", 9, "start", [1, 2], outputs=["OUTPUT0"])),
        "OK",
    ),
]
"""Requests that are answered at once."""

OVER_HTTP: list[Case[Http]] = [
    Case("no id", post("direct", 1), 400),
    Case("id 0", post("direct", 1, sequence_id=0, sequence_start=True), 400),
    Case("an empty id", post("direct", 1, sequence_id="", sequence_start=True), 400),
    Case("unknown", post("direct", 1, sequence_id=900), 400),
    Case("two rows", post("direct", 1, 2, sequence_id=900, sequence_start=True), 400),
    Case("an id too long", post("no_id", 1, sequence_id=LONG + "i", sequence_start=True), 501),
    Case("no id for an oldest one", post("oldest_one", 1), 400),
    Case(
        "an id beyond int64",
        post("oldest", 1, sequence_id=2**64 - 2, sequence_start=True, sequence_end=True),
        200,
        without_place,
    ),
    Case(
        "a text id",
        post("no_id", 1, sequence_id="a b", sequence_start=True, sequence_end=True),
        200,
        without_place,
    ),
]


def whole(model: str, identity: int | str, name: str = "a sequence") -> Case[Script]:
    """A sequence of three, and one request too many."""
    return script(
        f"{model}: {name}",
        Ask(part(model, identity, "start", 5, name="first")),
        Ask(part(model, identity, "middle", 6)),
        Ask(part(model, identity, "end", 7)),
        Ask(part(model, identity, "middle", 8)),
    )


def started_twice(model: str) -> Case[Script]:
    """The second start goes on in the slot."""
    steps = [part(model, 11, "start", 1), part(model, 11, "start", 2), part(model, 11, "middle", 3)]
    return script(f"{model}: started twice", *map(Ask, [*steps, part(model, 11, "end", 4)]))


def failing(model: str, mode: str) -> Case[Script]:
    """An error that does not end the sequence."""
    steps = [part(model, 12, "start"), part(model, 12, "middle", mode=mode)]
    return script(
        f"{model}: {mode} within",
        *map(Ask, [*steps, part(model, 12, "middle"), part(model, 12, "end")]),
    )


def counted(model: str) -> Case[Script]:
    """Statistics of sequences one after the other."""
    steps = [part(model, 13, "start"), part(model, 13, "end"), part(model, 14, "only")]
    return script(f"{model}: statistics", *map(Ask, steps), watch=model)


def short_text_id(when: str) -> Case[Call]:
    """The reference writes short ids as more than one element."""
    return Case(
        f"a short text id, {when}",
        call(part("id_text", "abc", when)),
        Differs(INVALID, "OK", IDS),
    )


ALONE: list[Case[Script]] = [
    *(whole(model, 7) for model in (*KINDS, "no_id", "id_uint32", "controls")),
    *(whole(model, 2**33 + 5, "a large id") for model in ("direct", "id_uint32")),
    *(whole(model, -5, "a negative id") for model in ("direct", "id_uint32", "controls", "no_id")),
    whole("no_id", "a b", "a text id"),
    whole("no_id", LONG, "a long text id"),
    whole("id_text", LONG, "a long text id"),
    script("a text and a number", Ask(part("no_id", "5", "only")), Ask(part("no_id", 5, "only"))),
    *(script(f"{model}: just one", Ask(part(model, 8, "only", 3))) for model in KINDS),
    *(started_twice(model) for model in KINDS),
    *(failing(model, mode) for model in ("direct", "oldest_one") for mode in ("INTERNAL", "raise")),
    *(counted(model) for model in KINDS),
    script(
        "idle for too long",
        Ask(part("idle", 3, "start")),
        Ask(part("idle", 3, "middle")),
        Pause(0.8),
        Ask(part("idle", 3, "middle")),
        Ask(part("idle", 3, "only")),
    ),
    script(
        "an ordinary model sees the sequence",
        Ask(part("plain", 3, "start", name="a", timeout=9)),
        Ask(part("plain", "text", "end")),
        Ask(part("plain4", 3, "only", [4, 5], custom="given")),
    ),
    script(
        "parameters and outputs reach a sequence's model",
        Ask(part("direct", 5, "only", 2, name="me", custom=1, outputs=["OUTPUT0"])),
        Ask(part("oldest", 5, "only", 2, name="me", custom=1, outputs=["FACTS"])),
    ),
    script(
        "implicit state",
        *(Ask(part("stateful", 4, when, 5)) for when in ("start", "middle", "end")),
        expected=Differs(
            (
                "OK",
                {
                    "answers": [
                        {"status": "OK", "id": "", "OUTPUT0": ["INT32", [1], [0]], "OUTPUT1": five}
                        for five in (["INT32", [1], [5]],) * 3
                    ]
                },
            ),
            (
                "OK",
                {
                    "answers": [
                        {
                            "status": "OK",
                            "id": "",
                            "OUTPUT0": ["INT32", [1], [before]],
                            "OUTPUT1": ["INT32", [1], [before + 5]],
                        }
                        for before in (0, 5, 10)
                    ]
                },
            ),
            "implicit-state",
        ),
    ),
    *(
        script(f"{model}: {count} times", Ask(give(model, count)))
        for model in ("iterate", "iterate4")
        for count in (1, 2, 5)
    ),
    *(
        script(f"{model}: with an id", Ask(part(model, 70, "start", 3)))
        for model in ("iterate", "iterate4")
    ),
]
"""Sequences whose requests wait for each other."""

TEXT_IDS = [short_text_id("only")]


def refusal(content: Json) -> Json:
    """The one reply of a stream: what it says beside its error."""
    (reply,) = content
    response = reply["infer_response"]
    return {
        "error": reply["error_message"],
        "model": response["model_name"],
        "id": response["id"],
        "final": "triton_final_response" in response["parameters"],
    }


STREAMED: list[Case[Call]] = [
    Case(
        "a decoupled sequence",
        stream(
            part("oldest_stream", 3, "start", 2, name="a"),
            part("oldest_stream", 3, "middle", 0, name="b"),
            part("oldest_stream", 3, "end", 1, name="c"),
        ),
        "OK",
    ),
    Case(
        "a decoupled sequence with empty finals",
        stream(
            *(
                part(
                    "oldest_stream", 4, when, 1, name=when, triton_enable_empty_final_response=True
                )
                for when in ("start", "end")
            )
        ),
        "OK",
    ),
    Case("no id on a stream", stream(give("oldest_stream", name="a")), "OK"),
    Case(
        "a sequence on a stream",
        stream(
            *(
                part("oldest", 6, when, name=when, outputs=["OUTPUT0"])
                for when in ("start", "middle", "end")
            )
        ),
        "OK",
    ),
    Case(
        "unknown on a stream",
        stream(part("oldest", 900, "middle", name="a")),
        Differs(
            ("OK", {"error": "a text", "model": "", "id": "a", "final": False}),
            ("OK", {"error": "a text", "model": "oldest", "id": "a", "final": True}),
            "stream-refusals",
        ),
        refusal,
    ),
]
