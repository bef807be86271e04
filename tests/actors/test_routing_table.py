"""Look-ups and their errors, the index, readiness."""

from __future__ import annotations

import pytest
import trio

from tests.support.builders import model_config
from tritrio.actors.messages import SchedulerMessage
from tritrio.actors.router import Router
from tritrio.actors.routing_table import (
    UNLOADED,
    FailedVersion,
    IndexEntry,
    ModelEntry,
    ModelState,
    ModelVersion,
    RoutingTable,
)
from tritrio.protocol.errors import ErrorCode, RequestError
from tritrio.protocol.model_spec import ModelSpec
from tritrio.protocol.statistics import ModelStatistics


def version(number: int, state: ModelState = ModelState.READY, reason: str = "") -> ModelVersion:
    config = model_config()
    send, receive = trio.open_memory_channel[SchedulerMessage](1)
    receive.close()
    made = ModelVersion(
        spec=ModelSpec.from_config(config, number),
        config=config,
        statistics=ModelStatistics(),
        inbox=send,
    )
    send.close()
    made.state = state
    made.reason = reason
    made.loaded = state in {ModelState.READY, ModelState.UNLOADING}
    return made


def table() -> RoutingTable:
    return RoutingTable(
        {
            "model": ModelEntry(
                "model",
                (
                    version(2),
                    version(10),
                    version(11, ModelState.UNAVAILABLE, "Internal: broken"),
                    FailedVersion("12", "Invalid argument: odd"),
                ),
            ),
            "broken": ModelEntry("broken", reason="Invalid argument: no"),
            "never": ModelEntry("never"),
        }
    )


def test_the_highest_ready_version_is_the_default() -> None:
    assert table().find("model").version == "10"
    assert table().find("model", "2").version == "2"
    assert table().find("model", "02").version == "2"
    assert table().versions_ready("model") == ["2", "10"]
    assert table().versions_ready("broken") == []


@pytest.mark.parametrize(
    ("name", "asked", "code", "words"),
    [
        ("nobody", "", ErrorCode.NOT_FOUND, ["'nobody'"]),
        ("nobody", "1", ErrorCode.NOT_FOUND, ["'nobody'"]),
        ("broken", "", ErrorCode.NOT_FOUND, ["'broken'"]),
        ("never", "", ErrorCode.NOT_FOUND, ["'never'", "is not loaded", "--load-model"]),
        ("model", "3", ErrorCode.NOT_FOUND, ["'model'", "3"]),
        ("model", "11", ErrorCode.UNAVAILABLE, ["'model'", "11", "not ready"]),
        ("model", "12", ErrorCode.UNAVAILABLE, ["'model'", "12", "not ready"]),
        ("model", "-1", ErrorCode.INVALID_ARG, ["'-1'", "greater than 0"]),
        ("model", "one", ErrorCode.INVALID_ARG, ["'one'", "greater than 0"]),
        ("model", "٣", ErrorCode.INVALID_ARG, ["greater than 0"]),
        ("model", "9" * 5000, ErrorCode.INVALID_ARG, ["greater than 0"]),
    ],
)
def test_lookups_that_fail_say_why(
    name: str, asked: str, code: ErrorCode, words: list[str]
) -> None:
    with pytest.raises(RequestError) as failed:
        table().find(name, asked)
    assert failed.value.code is code
    assert all(word in failed.value.message for word in words)
    assert len(failed.value.message) < 300


def test_the_index_lists_versions_and_models_without_any() -> None:
    assert table().index() == [
        IndexEntry("broken", None, ModelState.UNAVAILABLE, "Invalid argument: no"),
        IndexEntry("model", "2", ModelState.READY),
        IndexEntry("model", "10", ModelState.READY),
        IndexEntry("model", "11", ModelState.UNAVAILABLE, "Internal: broken"),
        IndexEntry("model", "12", ModelState.UNAVAILABLE, "Invalid argument: odd"),
        IndexEntry("never", None, ModelState.UNKNOWN),
    ]
    assert [entry.version for entry in table().index(ready_only=True)] == ["2", "10"]


def test_statistics_are_those_of_ready_versions() -> None:
    assert [found.version for found in table().statistics_of()] == ["2", "10"]
    assert [found.version for found in table().statistics_of("model")] == ["2", "10"]
    assert [found.version for found in table().statistics_of("model", "2")] == ["2"]
    for name, asked in [("nobody", ""), ("broken", ""), ("model", "11"), ("model", "x")]:
        with pytest.raises(RequestError) as failed:
            table().statistics_of(name, asked)
        assert failed.value.code is ErrorCode.INVALID_ARG


def test_readiness_waits_for_the_start_and_for_every_model() -> None:
    router = Router()
    assert router.live()
    assert not router.ready()
    router.started()
    assert router.ready()  # no models at all
    failing = version(1, ModelState.LOADING)
    router.apply(ModelEntry("model", (failing,)))
    assert not router.ready()
    failing.state = ModelState.READY
    router.apply(ModelEntry("model", (failing,)))
    assert router.ready()
    router.apply(ModelEntry("broken", reason="Invalid argument: no"))
    assert not router.ready()


def test_an_unloaded_version_does_not_count_for_readiness() -> None:
    router = Router()
    router.started()
    router.apply(ModelEntry("model", (version(1, ModelState.UNAVAILABLE, UNLOADED),)))
    assert router.ready()


def test_relaxed_readiness_is_that_of_the_server_alone() -> None:
    router = Router(strict_readiness=False)
    router.apply(ModelEntry("broken", reason="Invalid argument: no"))
    assert not router.ready()
    router.started()
    assert router.ready()


def test_what_failed_while_it_served_is_still_measured() -> None:
    router = Router()
    failed, unloaded = version(1, ModelState.UNAVAILABLE, "crashed"), version(2)
    failed.loaded = True
    unloaded.state, unloaded.reason = ModelState.UNAVAILABLE, UNLOADED
    never = version(3, ModelState.UNAVAILABLE, "no such file")
    router.apply(ModelEntry("model", (failed, unloaded, never)))
    assert router.measured_models() == [failed]


def test_an_exiting_server_finds_nothing_and_is_live_but_not_ready() -> None:
    router = Router()
    router.apply(ModelEntry("model", (version(1),)))
    router.started()
    router.begin_shutdown()
    assert router.live()
    assert not router.ready()
    with pytest.raises(RequestError, match="exiting") as failed:
        router.table.find("model")
    assert failed.value.code is ErrorCode.UNAVAILABLE
    assert [shown.version for shown in router.measured_models()] == ["1"]


def test_a_table_does_not_change() -> None:
    router = Router()
    before = router.table
    router.apply(ModelEntry("model", (version(1),)))
    assert before.index() == []
    assert len(router.table.index()) == 1
