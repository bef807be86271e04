"""What a known sequence of requests adds to the statistics of a model."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import pytest

from . import grpc_exchange
from .cases import Case, Json
from .grpc_requests import repeat, stream
from .http_answer_cases import fault
from .http_api_cases import get
from .http_exchange import Http, exchange
from .http_requests import infer, tensor
from .servers import Server, Servers

READ_ATTEMPTS_MAX = 200
"""The reference counts a request after it has answered it, so its counts are read again."""


@dataclass(frozen=True, slots=True)
class Added:
    """By how much the counts of a model grew."""

    success: int = 0
    fail: int = 0
    inferences: int = 0
    executions: int = 0

    def plus(self, other: Added) -> Added:
        """The sum of both."""
        mine, theirs = astuple(self), astuple(other)
        return Added(*(one + another for one, another in zip(mine, theirs, strict=True)))


def statistics(server: Server, model: str) -> Json:
    answer = exchange(server, Case("statistics", get(f"/v2/models/{model}/stats"), 200))
    (entry,) = answer.json["model_stats"]
    return entry


def counts(entry: Json) -> Added:
    stats = entry["inference_stats"]
    return Added(
        success=stats["success"]["count"],
        fail=stats["fail"]["count"],
        inferences=entry["inference_count"],
        executions=entry["execution_count"],
    )


def read_until(server: Server, model: str, wanted: Added) -> Json:
    """Read the statistics until the counts are those, or the attempts are used up."""
    for _ in range(READ_ATTEMPTS_MAX):
        entry = statistics(server, model)
        if counts(entry) == wanted:
            return entry
    pytest.fail(f"expected {wanted}, got {counts(entry)}")


def rows(count: int) -> Http:
    return infer({"inputs": [tensor("INPUT0", "FP32", [1] * count, [count, 1])]}, "counted")


def only_counts(content: Json) -> Json:
    """Statistics without times."""
    if isinstance(content, dict):
        return {
            key: only_counts(value)
            for key, value in content.items()
            if key not in {"ns", "last_inference"}
        }
    return [only_counts(value) for value in content] if isinstance(content, list) else content


@pytest.mark.reference
def test_a_sequence_of_good_requests_gives_equal_counts(servers: Servers) -> None:
    entries: list[Json] = []
    for server in servers:
        for count in (1, 3, 3, 8):
            assert exchange(server, Case("rows", rows(count), 200)).status == 200
        wanted = Added(success=4, fail=0, inferences=15, executions=4)
        entry = read_until(server, "counted", wanted)
        entry["batch_stats"].sort(key=lambda item: item["batch_size"])
        assert entry["last_inference"] > 0
        assert entry["inference_stats"]["success"]["ns"] > 0
        entries.append(only_counts(entry))
    reference, ours = entries
    assert ours == reference
    assert [item["batch_size"] for item in ours["batch_stats"]] == [1, 3, 8]


FAILURES = [
    (
        "a model that raises",
        fault("raise"),
        Added(fail=1, executions=1),
        Added(fail=1, executions=1),
    ),
    (
        "a model that answers with an error",
        fault("INVALID_ARG"),
        Added(success=1, inferences=1, executions=1),
        Added(fail=1, executions=1),
    ),
    ("a request that is refused", infer({"inputs": []}, "faults"), Added(), Added(fail=1)),
]
"""Name, request, what the reference adds, what we add."""
FAILURES_ROW = "failure-counts"
"""The row of docs/compatibility.md that says why they differ."""


@pytest.mark.reference
@pytest.mark.parametrize(
    ("request_", "reference", "ours"), [pytest.param(*row[1:], id=row[0]) for row in FAILURES]
)
def test_failures_are_counted(
    request_: Http, reference: Added, ours: Added, servers: Servers
) -> None:
    for server, added in zip(servers, (reference, ours), strict=True):
        before = counts(statistics(server, "faults"))
        assert exchange(server, Case("a failure", request_, 400)).status >= 400
        read_until(server, "faults", before.plus(added))


RESPONSES_ROW = "response-statistics"
"""The row of docs/compatibility.md that says why only we count the responses of Python models."""


@pytest.mark.reference
def test_responses_of_a_decoupled_model_are_counted_by_their_index(servers: Servers) -> None:
    call = stream(repeat([5, -1, 6]), repeat([7]), repeat([]))
    grown: list[dict[str, dict[str, int]]] = []
    for server in servers:
        before = statistics(server, "repeat")
        assert grpc_exchange.exchange(server, Case("responses", call, "OK")).status == "OK"
        wanted = counts(before).plus(Added(success=3, inferences=3, executions=3))
        after = read_until(server, "repeat", wanted)
        grown.append(
            {
                index: {
                    name: duration["count"] - of_response(before, index, name)
                    for name, duration in entry.items()
                    if duration["count"] != of_response(before, index, name)
                }
                for index, entry in after["response_stats"].items()
            }
        )
    reference, ours = grown
    assert reference == {}
    assert {index: counted for index, counted in ours.items() if counted} == {
        "0": {"compute_infer": 3, "compute_output": 2, "success": 2, "empty_response": 1},
        "1": {"compute_infer": 2, "compute_output": 1, "fail": 1, "empty_response": 1},
        "2": {"compute_infer": 1, "compute_output": 1, "success": 1},
        "3": {"compute_infer": 1, "empty_response": 1},
    }


def of_response(entry: Json, index: str, name: str) -> int:
    return int(entry["response_stats"].get(index, {}).get(name, {"count": 0})["count"])
