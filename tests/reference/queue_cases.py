"""Cases of the dynamic batcher and the response cache."""

from __future__ import annotations

from typing import Any

from .cases import Case, Differs, Json
from .grpc_exchange import Call
from .http_exchange import Http
from .scheduling_repository import DELAY, NO_TIMEOUT, REJECT, REJECT_FIXED, SHORT, SHORTEST
from .scheduling_requests import call, give, of_its_own, post, script
from .scripts import (
    Ask,
    Cancel,
    Hold,
    Pause,
    Queue,
    Release,
    Request,
    Script,
    Step,
    Wait,
    WaitForAll,
)

SHORT_US = 150_000
EXPIRED_S = 0.2
"""By then a request of `SHORT_US` has expired."""
CACHED_S = 0.1
"""By then an answer is in the cache."""
FAILURES = "failure-counts"
CACHE = "response-cache"
TIMED = ("success", "queue", "compute_input", "compute_infer", "compute_output", "inferences")
"""What every executed row counts."""


def held(model: str, *requests: Request) -> list[Step]:
    """Queue requests while another is executed."""
    return [Hold(give(model, 99)), *map(Queue, requests), Release(), WaitForAll()]


def levels(model: str) -> list[Request]:
    """Requests of all priorities; the model's default is 2."""
    given = (3, None, 1, 2, 9, 1, 3, 0)
    return [
        give(model, number) if priority is None else give(model, number, priority=priority)
        for number, priority in enumerate(given)
    ]


def policy(level: int, value: int, timeout_us: int | None = None) -> Request:
    """A request of that level of `policies`."""
    more: dict[str, Any] = {} if timeout_us is None else {"timeout": timeout_us}
    return give("policies", value, priority=level, **more)


def expiring(name: str, *requests: Request) -> Case[Script]:
    """Queue requests and release them once those of `SHORT_US` have expired."""
    model = requests[0].model_name
    steps: list[Step] = [Hold(give(model, 99)), *map(Queue, requests)]
    steps += [Pause(EXPIRED_S), Release()]
    return script(name, *steps, watch=model)


def full(name: str, good: int, requests: list[Request], batches: dict[str, int]) -> Case[Script]:
    """Requests of which only `good` find room in the queue; we count the others, as rejected."""
    refused = len(requests) - good
    statuses = ["OK"] * (1 + good) + ["UNAVAILABLE"] * refused
    added = dict.fromkeys(TIMED, 1 + good) | batches
    ours = added | {"fail": refused, "fail REJECTED": refused}
    return script(
        name,
        *held("policies", *requests),
        watch="policies",
        expected=Differs(
            ("OK", {"statuses": statuses, "added": {"policies": added}}),
            ("OK", {"statuses": statuses, "added": {"policies": ours}}),
            FAILURES,
        ),
    )


AFTER_CANCEL = ["OK", "OK", "CANCELLED", "OK"]
CANCELLED = {"fail": 1, "fail CANCELED": 1}


def one_by_one(count: int) -> dict[str, int]:
    """The statistics of that many requests, each executed alone."""
    names = (*TIMED, "executions", "batches of 1")
    return dict.fromkeys(names, count)


OVERTAKEN = dict.fromkeys(TIMED, 4) | {"executions": 3, "batches of 1": 2, "batches of 2": 1}
"""Four requests of which the last overtakes the third."""

BATCHES: list[Case[Script]] = [
    script("plain: one by one", *held("plain", *(give("plain", i) for i in (1, 2, 3)))),
    script(
        "plain4: one by one",
        *held("plain4", *(give("plain4", i) for i in (1, 2, 3))),
        watch="plain4",
    ),
    script(
        "levels: four at a time",
        *held("levels", *(give("levels", i) for i in range(6))),
        watch="levels",
    ),
    script(
        "levels: rows count",
        *held("levels", give("levels", [1, 2, 3]), give("levels", [4, 5]), give("levels", 6)),
        watch="levels",
    ),
    script(
        "levels: full by one request",
        *held("levels", give("levels", [1, 2, 3, 4]), give("levels", 5)),
        watch="levels",
    ),
    script(
        "levels: neighbours of one length",
        *held(
            "levels",
            *(give("levels", values, across=True) for values in ([1, 2], [3, 4], [5], [6])),
        ),
        watch="levels",
    ),
    script(
        "levels: neighbours of the same optional inputs",
        *held(
            "levels",
            give("levels", 1),
            give("levels", 2, mode="no OUTPUT0"),
            give("levels", 3, mode="no OUTPUT0"),
        ),
        watch="levels",
    ),
    script(
        "levels: others in between",
        *held(
            "levels",
            *(give("levels", values, across=True) for values in ([1, 2], [3], [4, 5])),
        ),
        watch="levels",
        expected=Differs(
            ("OK", {"added": {"levels": one_by_one(4)}}),
            ("OK", {"added": {"levels": OVERTAKEN}}),
            "batch-neighbours",
        ),
    ),
    script(
        "levels: an error of one",
        *held(
            "levels",
            give("levels", 1, mode="no OUTPUT0"),
            give("levels", 2, mode="INTERNAL"),
            give("levels", 3, mode="no OUTPUT0"),
        ),
    ),
    script(
        "levels: a batch that raises",
        *held("levels", give("levels", 1, mode="no OUTPUT0"), give("levels", 2, mode="raise")),
    ),
    script(
        "batched: everyone has its own",
        *held(
            "batched",
            give("batched", 1, name="a", custom=1, outputs=["FACTS"]),
            give("batched", 2, name="b", custom="x", outputs=["OUTPUT0"]),
            give("batched", [3, 4], name="c", timeout=10**6),
            give("batched", [5, 6], across=True),
        ),
        mask=of_its_own,
    ),
    script(
        "preferred: two",
        Queue(give("preferred", 1)),
        Queue(give("preferred", 2)),
        Wait(0),
        watch="preferred",
    ),
    script("preferred: four rows", Ask(give("preferred", [1, 2, 3, 4])), watch="preferred"),
    script("preferred: eight rows", Ask(give("preferred", [1] * 8)), watch="preferred"),
    script(
        "ordered: the later one waits for the earlier one",
        Hold(give("ordered", 1)),
        Hold(give("ordered", 2)),
        Release(1),
        Release(),
        watch="ordered",
    ),
    script(
        "plain: a cancelled one",
        *held("plain", give("plain", 1), give("plain", 2))[:-2],
        Cancel(2),
        Pause(EXPIRED_S),
        Release(),
        Wait(1),
        Ask(give("plain", 3)),
        watch="plain",
        expected=Differs(
            ("OK", {"statuses": AFTER_CANCEL, "added": {"plain": one_by_one(4)}}),
            ("OK", {"statuses": AFTER_CANCEL, "added": {"plain": one_by_one(3) | CANCELLED}}),
            "cancellation",
        ),
    ),
]

PRIORITIES: list[Case[Script]] = [
    script("levels: a batch of levels", *held("levels", *levels("levels")), watch="levels"),
    script("batched: no levels", *held("batched", *levels("batched")[:4]), mask=of_its_own),
    script("plain: no levels", *held("plain", *levels("plain")[:4])),
]

LIMITS: list[Case[Script]] = [
    full(
        "two may wait",
        2,
        [policy(SHORT, number) for number in range(5)],
        {"executions": 2, "batches of 1": 1, "batches of 2": 1},
    ),
    full(
        "one may wait",
        1,
        [policy(SHORTEST, number) for number in range(3)],
        {"executions": 2, "batches of 1": 2},
    ),
    script(
        "levels are full for themselves",
        *held(
            "policies",
            *(policy(SHORT, number) for number in (1, 2)),
            policy(SHORTEST, 3),
            *(policy(REJECT, number) for number in (4, 5, 6)),
        ),
        watch="policies",
    ),
    script(
        "room again",
        *held("policies", policy(SHORT, 1), policy(SHORT, 2)),
        *held("policies", policy(SHORT, 3), policy(SHORT, 4)),
        watch="policies",
    ),
    script(
        "rows do not count",
        *held(
            "policies",
            *(give("policies", [number] * 3, priority=SHORT) for number in (1, 2)),
        ),
        watch="policies",
    ),
]

TIMEOUTS: list[Case[Script]] = [
    expiring(
        "shorter than the default",
        policy(REJECT, 1, SHORT_US),
        policy(REJECT, 2),
        policy(REJECT, 3, SHORT_US),
        policy(REJECT, 4),
    ),
    expiring(
        "nothing shorter than the default",
        policy(REJECT, 1, 10**9),
        policy(REJECT, 2, 0),
        policy(REJECT_FIXED, 3, SHORT_US),
        policy(NO_TIMEOUT, 4, SHORT_US),
    ),
    script(
        "no batcher",
        *held("plain", give("plain", 1, timeout=SHORT_US))[:-2],
        Pause(EXPIRED_S),
        Release(),
        watch="plain",
        expected=Differs(
            ("OK", {"statuses": ["OK", "OK"]}),
            ("OK", {"statuses": ["OK", "UNAVAILABLE"]}),
            "queue-timeouts",
        ),
    ),
    expiring("no policy", give("batched", 1, timeout=SHORT_US)),
    expiring(
        "delayed behind the others",
        policy(DELAY, 1),
        policy(DELAY, 2, SHORT_US),
        policy(DELAY, 3),
    ),
    expiring(
        "two delayed behind the others",
        *(policy(DELAY, number, SHORT_US) for number in (1, 2)),
        *(policy(DELAY, number) for number in (3, 4, 5)),
    ),
    expiring(
        "delayed, but before lower levels",
        policy(DELAY, 1, SHORT_US),
        policy(NO_TIMEOUT, 2),
        policy(DELAY, 3),
        policy(REJECT, 4),
    ),
    script(
        "answered while the instance is busy",
        Hold(give("policies", 99)),
        Queue(policy(REJECT, 1, SHORT_US)),
        Wait(1),
        Release(),
        watch="policies",
    ),
]

PARAMETERS: list[Case[Call]] = [
    Case("a priority as int64", call(give("levels", priority=1, outputs=["OUTPUT0"])), "OK"),
    Case("a negative priority", call(give("levels", priority=-1)), "INVALID_ARGUMENT"),
    Case("a priority as text", call(give("levels", priority="1")), "INVALID_ARGUMENT"),
    Case("a timeout as text", call(give("levels", timeout="1")), "INVALID_ARGUMENT"),
    Case("a timeout as a bool", call(give("levels", timeout=True)), "INVALID_ARGUMENT"),
]

CLASSES = [{"name": "OUTPUT0", "parameters": {"classification": 1}}]
OVER_HTTP: list[Case[Http]] = [
    Case("a priority", post("increase4", 1, priority=1, timeout=5), 200),
    Case("classes into the cache", post("cached", 71, outputs=CLASSES), 200),
    Case("classes from the cache", post("cached", 71, outputs=CLASSES), 200),
]


def hits(model: str) -> Case[Script]:
    """The same rows again, with another id, and other rows."""
    return script(
        f"{model}: hits and misses",
        Ask(give(model, 31, name="a")),
        Pause(CACHED_S),
        Ask(give(model, 31, name="b")),
        Ask(give(model, [31, 32])),
        Pause(CACHED_S),
        Ask(give(model, [31, 32], priority=1, timeout=5)),
        Ask(give(model, 32)),
        watch=model,
    )


def names_of_outputs(content: Json) -> Json:
    """Just which outputs came."""
    answers = content["answers"]
    return {"outputs": [sorted(answer.keys() & {"OUTPUT0", "facts"}) for answer in answers]}


def custom_parameters(content: Json) -> Json:
    """The parameter `custom` that the model saw for each answer."""
    batches = [answer["facts"][1]["batch"] for answer in content["answers"]]
    return {"seen": [batch[0]["parameters"]["custom"] for batch in batches]}


CACHES: list[Case[Script]] = [
    hits("cached"),
    hits("cached_batched"),
    script(
        "cached: a hit does not wait",
        Ask(give("cached", 41)),
        Pause(CACHED_S),
        Hold(give("cached", 42)),
        Ask(give("cached", 41)),
        Release(),
        watch="cached",
    ),
    *(
        script(
            f"cached: {mode} is not kept",
            Ask(give("cached", 44, mode=mode)),
            Pause(CACHED_S),
            Ask(give("cached", 44, mode=mode)),
            expected=Differs(
                ("OK", {"statuses": ["INTERNAL", "OK"]}),
                ("OK", {"statuses": ["INTERNAL", "INTERNAL"]}),
                CACHE,
            ),
        )
        for mode in ("INTERNAL", "raise")
    ),
    script(
        "cached: other parameters",
        Ask(give("cached", 46, custom="x")),
        Pause(CACHED_S),
        Ask(give("cached", 46, custom="y")),
        mask=custom_parameters,
        expected=Differs(("OK", {"seen": ["x", "x"]}), ("OK", {"seen": ["x", "y"]}), CACHE),
    ),
    script(
        "cached: other outputs",
        Ask(give("cached", 45, outputs=["OUTPUT0"])),
        Pause(CACHED_S),
        Ask(give("cached", 45, outputs=["FACTS"])),
        Ask(give("cached", 45)),
        expected=Differs(
            ("OK", {"outputs": [["OUTPUT0"], ["OUTPUT0"], ["OUTPUT0"]]}),
            ("OK", {"outputs": [["OUTPUT0"], ["facts"], ["OUTPUT0", "facts"]]}),
            CACHE,
        ),
        mask=names_of_outputs,
    ),
]
CASES = [*BATCHES, *PRIORITIES, *LIMITS, *TIMEOUTS, *CACHES]
