"""Cases of the sequence batcher in which sequences meet: slots, fillers, backlog, order."""

from __future__ import annotations

from .cases import Case, Differs, Json, Mask
from .scheduling_requests import of_its_own, part, script, without_null_outputs
from .scripts import Ask, Cancel, Hold, Pause, Queue, Release, Script, Step, Wait, WaitForAll

BACKLOG_TIMEOUT_US = 200_000
CANCEL_S = 0.3
"""A cancellation has reached the server by then."""


def start(model: str, *identities: int) -> list[Step]:
    """Start these sequences, one after the other."""
    return [Ask(part(model, identity, "start")) for identity in identities]


def end(model: str, *identities: int) -> list[Step]:
    """End these sequences, one after the other."""
    return [Ask(part(model, identity, "end")) for identity in identities]


def held(model: str, identity: int, *queued: Step) -> list[Step]:
    """Queue requests while one of that sequence is executed."""
    return [Hold(part(model, identity, "middle", 99)), *queued, Release(), WaitForAll()]


def queue(model: str, identity: int, when: str, value: int) -> Queue:
    """Queue a request of a sequence."""
    return Queue(part(model, identity, when, value))


def mixed(model: str, watch: str = "", mask: Mask = without_null_outputs) -> Case[Script]:
    """Two sequences of several queued requests, and one that starts meanwhile."""
    return script(
        f"{model}: sequences of several queued requests",
        *start(model, 21, 22, 23),
        *held(
            model,
            21,
            queue(model, 21, "middle", 11),
            queue(model, 23, "middle", 31),
            queue(model, 21, "middle", 12),
            queue(model, 23, "end", 32),
            queue(model, 24, "start", 41),
        ),
        *end(model, 21, 22, 24),
        watch=watch,
        mask=mask,
    )


def rows_of_batches(content: Json) -> Json:
    """How many rows the batch of each answer had."""
    return {"rows": [len(answer["facts"][1]["batch"]) for answer in content["answers"]]}


def asked_of_null(content: Json) -> Json:
    """The outputs that the null request before the second answer asks for."""
    (null, _) = content["answers"][1]["facts"][1]["batch"]
    return {"asked": null["outputs"]}


DIRECT: list[Case[Script]] = [
    script(
        "outputs that a null request asks for",
        *start("direct", 1, 2),
        *end("direct", 1, 2),
        mask=asked_of_null,
        expected=Differs(
            ("OK", {"asked": []}), ("OK", {"asked": ["FACTS", "OUTPUT0"]}), "null-requests"
        ),
    ),
    script(
        "null requests fill the slots before",
        *start("direct", 1, 2, 3),
        Ask(part("direct", 3, "middle", 33)),
        Ask(part("direct", 2, "middle", 22)),
        Ask(part("direct", 1, "middle", 11)),
        *end("direct", 1, 2, 3),
        watch="direct",
    ),
    script(
        "a free slot is taken from the lowest",
        *start("direct", 1, 2, 3),
        *end("direct", 1),
        *start("direct", 4),
        *end("direct", 3, 2, 4),
    ),
    mixed("direct", watch="direct"),
    script(
        "the backlog waits for a slot",
        *start("direct", 1, 2, 3, 4),
        *held(
            "direct",
            1,
            queue("direct", 5, "start", 51),
            queue("direct", 5, "end", 52),
            queue("direct", 3, "end", 32),
        ),
        *end("direct", 1, 2, 4),
        watch="direct",
    ),
    script(
        "the backlog is first come, first served",
        *start("direct_one", 1),
        *held(
            "direct_one",
            1,
            queue("direct_one", 2, "start", 20),
            queue("direct_one", 3, "only", 30),
            queue("direct_one", 2, "middle", 21),
            queue("direct_one", 2, "end", 22),
            queue("direct_one", 2, "only", 24),
            queue("direct_one", 1, "end", 10),
        ),
        watch="direct_one",
    ),
    script(
        "started twice in the backlog",
        *start("direct_one", 1),
        *held(
            "direct_one",
            1,
            queue("direct_one", 2, "start", 20),
            queue("direct_one", 2, "start", 21),
            queue("direct_one", 2, "end", 22),
            queue("direct_one", 1, "end", 10),
        ),
    ),
    script(
        "a sequence that has ended in the backlog",
        *start("direct_one", 1),
        *held(
            "direct_one",
            1,
            queue("direct_one", 2, "only", 20),
            Ask(part("direct_one", 2, "middle", 21)),
            queue("direct_one", 1, "end", 10),
        ),
    ),
    script(
        "slots of two instances",
        *start("direct_two", 1, 2, 3, 4),
        *(Ask(part("direct_two", identity, "middle")) for identity in (1, 2, 3, 4)),
        *end("direct_two", 2),
        *start("direct_two", 5),
        *end("direct_two", 1, 3, 4, 5),
    ),
    script(
        "rows of different lengths",
        *start("direct", 1, 2),
        *held(
            "direct",
            1,
            Queue(part("direct", 1, "middle", [1, 2], across=True)),
            Queue(part("direct", 2, "middle", [1, 2, 3], across=True)),
        ),
        *end("direct", 1, 2),
        mask=rows_of_batches,
        expected=Differs(
            ("OK", {"rows": [1, 2, 1, 2, 2, 1, 2]}),
            ("OK", {"rows": [1, 2, 1, 1, 2, 1, 2]}),
            "direct-shapes",
        ),
    ),
    script(
        "rows of the same length",
        *start("direct", 1, 2),
        *held(
            "direct",
            1,
            Queue(part("direct", 2, "middle", [1, 2, 3], across=True)),
            Queue(part("direct", 1, "middle", [4, 5, 6], across=True)),
        ),
        *end("direct", 2, 1),
    ),
    script(
        "three of four slots are enough",
        queue("direct_full", 1, "start", 1),
        queue("direct_full", 2, "start", 2),
        queue("direct_full", 3, "start", 3),
        Wait(2),
        queue("direct_full", 3, "end", 3),
        queue("direct_full", 2, "end", 2),
        queue("direct_full", 1, "end", 1),
        watch="direct_full",
    ),
    script(
        "a timeout in the backlog",
        *start("direct_one", 1),
        Queue(part("direct_one", 2, "start", timeout=BACKLOG_TIMEOUT_US)),
        Queue(part("direct_one", 2, "middle")),
        Queue(part("direct_one", 3, "only", 3)),
        Wait(1),
        Wait(2),
        *end("direct_one", 1),
        watch="direct_one",
    ),
    *(
        script(
            f"{model}: unknown after a timeout in the backlog",
            *start(model, 1),
            Queue(part(model, 2, "start", timeout=BACKLOG_TIMEOUT_US)),
            Wait(1),
            Ask(part(model, 2, "middle")),
            *end(model, 1),
        )
        for model in ("direct_one", "oldest_one")
    ),
    script(
        "no timeout in a slot",
        Ask(part("direct_one", 1, "start", timeout=1)),
        *held(
            "direct_one",
            1,
            Queue(part("direct_one", 1, "end", timeout=1000)),
            Pause(CANCEL_S),
        ),
        watch="direct_one",
    ),
    script(
        "a cancelled request ends its sequence",
        *start("direct_one", 1),
        *held(
            "direct_one",
            1,
            queue("direct_one", 1, "middle", 11),
            queue("direct_one", 1, "middle", 12),
            queue("direct_one", 1, "middle", 13),
            queue("direct_one", 2, "only", 20),
            Cancel(3),
            Pause(CANCEL_S),
        ),
        watch="direct_one",
    ),
    script(
        "a start is needed after a cancellation",
        *start("direct_one", 1),
        *held("direct_one", 1, queue("direct_one", 1, "middle", 11), Cancel(2), Pause(CANCEL_S)),
        Ask(part("direct_one", 1, "middle")),
        Ask(part("direct_one", 1, "only")),
    ),
    script(
        "other sequences go on after an error",
        *start("direct", 1, 2),
        *held(
            "direct",
            1,
            Queue(part("direct", 1, "middle", mode="INTERNAL")),
            queue("direct", 2, "middle", 22),
        ),
        *end("direct", 1, 2),
    ),
]

OLDEST: list[Case[Script]] = [
    mixed("oldest", mask=of_its_own),
    script(
        "one request of a sequence at a time",
        *start("oldest", 1),
        *held(
            "oldest",
            1,
            queue("oldest", 1, "middle", 11),
            queue("oldest", 1, "middle", 12),
            queue("oldest", 1, "end", 13),
        ),
        watch="oldest",
    ),
    script(
        "the backlog waits for a candidate",
        *start("oldest", 1, 2, 3, 4),
        *held(
            "oldest",
            1,
            queue("oldest", 5, "start", 51),
            queue("oldest", 5, "end", 52),
            queue("oldest", 3, "end", 32),
        ),
        *end("oldest", 1, 2, 4),
        watch="oldest",
    ),
    script(
        "one candidate at a time",
        *start("oldest_one", 1),
        *held(
            "oldest_one",
            1,
            queue("oldest_one", 2, "start", 20),
            queue("oldest_one", 3, "only", 30),
            queue("oldest_one", 2, "end", 21),
            queue("oldest_one", 1, "end", 10),
        ),
        watch="oldest_one",
    ),
    script(
        "a timeout in the backlog of an oldest one",
        *start("oldest_one", 1),
        Queue(part("oldest_one", 2, "start", timeout=BACKLOG_TIMEOUT_US)),
        Wait(1),
        *end("oldest_one", 1),
        watch="oldest_one",
    ),
    script(
        "a preferred size of two",
        queue("oldest_pairs", 1, "start", 1),
        queue("oldest_pairs", 2, "start", 2),
        WaitForAll(),
        queue("oldest_pairs", 2, "end", 3),
        queue("oldest_pairs", 1, "end", 4),
        watch="oldest_pairs",
    ),
]
CASES = [*DIRECT, *OLDEST]
