"""Runs the examples of docs/scheduling.md in a server, and compares its numbers with the code's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import pytest

from tests.support.server_process import ROOT, ServerProcess, running_server
from tritrio.actors import _cache_access, caching, ensemble
from tritrio.actors._batch_candidate import BatchReason
from tritrio.actors._batch_explanation import DECISIONS_KEPT
from tritrio.actors._batch_policy import LOOK_AHEAD_MAX
from tritrio.actors._ensemble_run import ITERATIONS_MAX
from tritrio.actors._overload_policy import MEMORY_HIGH, MEMORY_LOW, OVERLOAD_RETRY_S
from tritrio.actors._priority_queue import RETRY_S_MAX, RETRY_S_MIN
from tritrio.actors._queue_rules import QUEUE_SIZE_MAX
from tritrio.actors._rate_limit_policy import DUE_AFTER
from tritrio.actors._response_gate import RESPONSES_WAITING_MAX
from tritrio.actors._restart_policy import RestartBudget
from tritrio.actors.core import BYTE_BUDGET_DEFAULT
from tritrio.actors.instance_slot import HANGING_MAX
from tritrio.backends.base import SequenceEndReason
from tritrio.backends.warmup import FINAL_RESPONSES_MAX_S
from tritrio.command_line.parsing import build_parser
from tritrio.memory.cache_config import (
    _REDIS_KEYS,
    POOL_SIZE_MAX,
    RedisConfig,
    parse_cache_config,
)
from tritrio.memory.redis_cache import KEY_PREFIX, UNLIMITED_S
from tritrio.protocol.config_rules import SEQUENCE_IDLE_DEFAULT_US
from tritrio.protocol.errors import FailureReason

from .raw_http import Answer, ask, connect, request

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PAGE = ROOT / "docs" / "scheduling.md"
TEXT = PAGE.read_text()
WORDS = " ".join(TEXT.split())
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\w+/(?:\w+/)?\w+\.\w+)")
TIMES = ("ago_us", "oldest_wait_us")

ECHO = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(r, "INPUT0").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", x)]) for x in inputs]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] allow_ragged_batch: true } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
STRATEGY = """
dynamic_batching { max_queue_delay_microseconds: 100000 }
parameters { key: "elements" value { string_value: "6" } }
"""
STATE = """
sequence_batching {
  max_sequence_idle_microseconds: 200000
  state [ { input_name: "SUM" output_name: "NEXT" data_type: TYPE_FP32 dims: [ 1 ] } ]
}
"""
AROUND = {
    "rank/1/model.py": ECHO,
    "score/1/model.py": ECHO,
    "score/config.pbtxt": CONFIG + STRATEGY,
    "count/config.pbtxt": CONFIG + STATE,
    "steps/config.pbtxt": CONFIG + "sequence_batching { iterative_sequence: true }",
}
"""What the page leaves to its readers."""


def examples() -> dict[str, str]:
    """Path in the repository -> content, of each example that begins with its file's name."""
    found = {}
    for _, code in FENCES:
        name = FILE_NAME.match(code)
        if name is not None:
            found[name[1]] = code
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the models of the page."""
    place = tmp_path_factory.mktemp("scheduling")
    for name, content in {**AROUND, **examples()}.items():
        model = place / "models" / name.partition("/")[0]
        (model / "1").mkdir(parents=True, exist_ok=True)
        (place / "models" / name).write_text(content)
    with running_server(place / "models", place / "log") as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log()


def body(values: Sequence[float], **parameters: Any) -> bytes:
    tensor = {"name": "INPUT0", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def infer(server: ServerProcess, model: str, values: Sequence[float], **parameters: Any) -> Answer:
    return ask(server.http_port, "POST", f"/v2/models/{model}/infer", body(values, **parameters))


def output(answer: Answer) -> Any:
    assert answer.status == 200, answer.body
    (tensor,) = answer.json()["outputs"]
    return tensor["data"]


def explained(server: ServerProcess, model: str) -> Any:
    return ask(server.http_port, "GET", f"/v2/models/{model}/batching").json()


def infer_at_once(server: ServerProcess, model: str, inputs: Sequence[Sequence[float]]) -> None:
    """Send requests in one piece, so that they arrive in this order, and wait for the answers."""
    path = f"/v2/models/{model}/infer"
    with connect(server.http_port) as connection:
        connection.sendall(b"".join(request("POST", path, body(values)) for values in inputs))
        received = b""
        while received.count(b"HTTP/1.1 200") < len(inputs):
            piece = connection.recv(65536)
            assert piece, received
            received += piece


def without_times(explanation: Any) -> Any:
    for decision in explanation["decisions"]:
        for name in TIMES:
            assert type(decision.pop(name)) is int
    return explanation


def test_the_page_has_at_most_240_lines_and_its_links_lead_somewhere() -> None:
    assert len(TEXT.splitlines()) <= 240
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    assert [link for link in links if not (PAGE.parent / link).exists()] == []


def test_every_example_says_which_file_it_is() -> None:
    assert len(examples()) == len([1 for language, _ in FENCES if language != "json"]) == 4


def test_the_explanation_of_two_shapes_is_the_one_on_the_page(server: ServerProcess) -> None:
    (shown,) = [code for language, code in FENCES if language == "json"]
    infer_at_once(server, "rank", [[1, 2], [3, 4], [1, 2, 3]])
    assert without_times(explained(server, "rank")) == without_times(json.loads(shown))


def test_the_strategy_closes_a_batch_that_has_its_elements(server: ServerProcess) -> None:
    infer_at_once(server, "score", [[1, 2], [1, 2, 3], [1, 2], [3, 4]])
    explanation = explained(server, "score")
    assert explanation["rules"]["strategy"] is not None
    last, first = explanation["decisions"]
    assert (first["requests"], first["reason"], first["left_out"]) == (
        2,
        "batch strategy",
        "batch strategy",
    )
    assert (last["requests"], last["reason"], last["left_out"]) == (2, "delay over", None)


def test_the_state_of_a_python_model_is_kept_and_ends_are_heard(server: ServerProcess) -> None:
    assert output(infer(server, "count", [5], sequence_id=7, sequence_start=True)) == [5]
    assert output(infer(server, "count", [2], sequence_id=7)) == [7]
    assert output(infer(server, "count", [1], sequence_id=7, sequence_end=True)) == [8]
    server.wait_for_log("sequence 7: end")
    for _ in range(2):
        assert output(infer(server, "count", [3], sequence_id=8, sequence_start=True)) == [3]
    server.wait_for_log("sequence 8: restarted")
    server.wait_for_log("sequence 8: idle")
    assert infer(server, "count", [1], sequence_id=8).status == 400


def test_an_iterative_request_is_executed_as_often_as_it_asks(server: ServerProcess) -> None:
    assert output(infer(server, "steps", [3])) == [3]
    answer = ask(server.http_port, "GET", "/v2/models/steps/stats").json()
    (statistics,) = answer["model_stats"]
    assert (statistics["inference_count"], statistics["execution_count"]) == (1, 3)


@pytest.mark.parametrize("reasons", [BatchReason, SequenceEndReason, FailureReason])
def test_every_reason_is_explained(reasons: type[Enum]) -> None:
    assert [each.value for each in reasons if f"`{each.value}`" not in TEXT] == []


def test_the_keys_of_the_redis_cache_and_their_defaults_are_those_of_the_server() -> None:
    assert set(re.findall(r"`redis,(\w+)=`", TEXT)) == set(_REDIS_KEYS)
    items = ["redis,host=h", "redis,port=1", "redis,tls_enabled=false"]
    for keys, defaults in re.findall(r"^\| (`redis,.*?) \| ([\d, ]+) \|", TEXT, re.MULTILINE):
        names = re.findall(r"redis,(\w+)=", keys)
        pairs = zip(names, defaults.split(", "), strict=True)
        items += [f"redis,{name}={value}" for name, value in pairs]
    assert len(items) == 8
    assert parse_cache_config(items, environment={}) == RedisConfig(host="h", port=1)


BUDGET = RestartBudget()
SENTENCES = [
    f"the last {DECISIONS_KEPT} decisions",
    f'"look_ahead": {LOOK_AHEAD_MAX}',
    f"{QUEUE_SIZE_MAX:,} if not set",
    f"{RETRY_S_MIN:g} to {RETRY_S_MAX:g} s",
    f"`Retry-After: {OVERLOAD_RETRY_S:g}`",
    f"when {MEMORY_HIGH} of `--byte-budget` ({BYTE_BUDGET_DEFAULT // 1024**3} GiB) is used",
    f"ends at {MEMORY_LOW}",
    f"{SEQUENCE_IDLE_DEFAULT_US // 10**6} s by default",
    f"{ITERATIONS_MAX} responses of a decoupled step",
    f"{RESPONSES_WAITING_MAX} that wait behind them",
    f"others wait. {ensemble.RUNNING_MAX:,} at most",
    f"connections, {POOL_SIZE_MAX} at most",
    f"comes to {UNLIMITED_S:g} s",
    f"up to {caching.FOLLOWERS_MAX:,} wait",
    f"Redis has {_cache_access.LOOKUP_MAX_S:g} s for a look-up",
    f"{_cache_access.REST_S:g} s of rest",
    f"`{KEY_PREFIX.decode()}*`",
    f"after {DUE_AFTER} times `priority` turns of others",
    f"have {FINAL_RESPONSES_MAX_S:g} s for their ends",
    f"{HANGING_MAX} threads of an instance",
    f"{BUDGET.intensity} within {BUDGET.period_s:g} s, after {BUDGET.backoff_s:g} s",
]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_the_numbers_of_the_page_are_those_of_the_code(sentence: str) -> None:
    assert sentence in WORDS


def test_every_flag_of_the_page_exists() -> None:
    flags = set(re.findall(r"--[a-z][a-z-]+", TEXT))
    assert len(flags) >= 7
    assert flags - set(build_parser().format_help().replace(",", " ").split()) == set()
