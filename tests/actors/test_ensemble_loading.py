"""Ensembles in a repository: in which order they load, why they do not, and how they stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.actors.test_core import IDENTITY, add_model, reasons, running, states
from tests.support.builders import infer_request
from tests.support.fake_device import FakeDevices
from tritrio.actors._ensemble_validation import NESTING_MAX
from tritrio.actors._model_relations import waves
from tritrio.actors.core import Core
from tritrio.actors.inference import submit
from tritrio.actors.reply import Reply
from tritrio.actors.routing_table import ModelState

READY, UNAVAILABLE = ModelState.READY, ModelState.UNAVAILABLE

TENSORS = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""


def step(model: str, source: str, target: str, version: str = "-1") -> str:
    return f"""step {{
      model_name: "{model}" model_version: {version}
      input_map {{ key: "INPUT0" value: "{source}" }}
      output_map {{ key: "OUTPUT0" value: "{target}" }}
    }}"""


def ensemble_of(*models: str, version: str = "-1") -> str:
    """Runs the models one after the other."""
    tensors = ["INPUT0", *(f"t{number}" for number in range(1, len(models))), "OUTPUT0"]
    steps = [
        step(model, source, target, version)
        for model, source, target in zip(models, tensors, tensors[1:], strict=False)
    ]
    return TENSORS + "ensemble_scheduling {" + "".join(steps) + "}"


def ask(core: Core, name: str) -> Reply:
    return submit(core.router.table.find(name), infer_request(7), trio.current_time())


async def test_ensembles_load_after_the_models_they_use(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "a_outer", ensemble_of("b_inner", "z_model"))
    add_model(tmp_path, "b_inner", ensemble_of("z_model", "z_model"))
    add_model(tmp_path, "z_model")
    async with running(tmp_path, device_factory=FakeDevices(other_s=2.0)) as core:
        assert states(core) == {"a_outer/1": READY, "b_inner/1": READY, "z_model/1": READY}
        response = await ask(core, "a_outer").receive()
        assert response.error is None
        assert response.outputs[0].array.tolist() == [[7] * 4]
        assert core.router.table.find("z_model").statistics.success.count == 3
        assert core.router.table.find("a_outer").spec.platform == "ensemble"


@pytest.mark.parametrize("name", ["missing", "../../etc", "/etc", ""])
async def test_an_ensemble_of_a_model_that_is_not_there_does_not_load(
    autojump_clock: MockClock, tmp_path: Path, name: str
) -> None:
    add_model(tmp_path, "e", ensemble_of(name))
    async with running(tmp_path) as core:
        assert states(core) == {"e/1" if not name else "e": UNAVAILABLE}
        assert reasons(core)["e"] == (
            f"Invalid argument: ensemble 'e' needs model '{name}', which has no loaded version: "
            "there is no such model"
            if name
            else "Invalid argument: model 'e': step 0 (model '') needs model_name, got none"
        )


async def test_the_reason_of_a_composing_model_is_the_reason_of_its_ensembles(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "outer", ensemble_of("e"))
    add_model(tmp_path, "e", ensemble_of("good", "broken"))
    add_model(tmp_path, "good")
    add_model(tmp_path, "broken", 'backend: "identity" max_batch_size: -3')
    async with running(tmp_path) as core:
        assert states(core)["good/1"] is READY
        broken = reasons(core)["broken"]
        assert "max_batch_size" in broken
        inner = reasons(core)["e"]
        assert inner == (
            "Invalid argument: ensemble 'e' needs model 'broken', which has no loaded version: "
            + broken.replace("model 'broken': ", "")
        )
        assert reasons(core)["outer"] == (
            "Invalid argument: ensemble 'outer' needs model 'e', which has no loaded version: "
            + inner
        )


async def test_ensembles_that_use_each_other_are_refused_by_name(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "good")
    for name, used in (("a", "b"), ("b", "c"), ("c", "a"), ("user", "a"), ("fine", "good")):
        add_model(tmp_path, name, ensemble_of(used))
    async with running(tmp_path) as core:
        found = reasons(core)
        assert found["a"] == "Invalid argument: ensemble 'a' uses itself: 'a' -> 'b' -> 'c' -> 'a'"
        assert found["b"] == "Invalid argument: ensemble 'b' uses itself: 'b' -> 'c' -> 'a' -> 'b'"
        assert found["c"] == "Invalid argument: ensemble 'c' uses itself: 'c' -> 'a' -> 'b' -> 'c'"
        assert found["user"].startswith("Invalid argument: ensemble 'user' needs model 'a', which")
        assert states(core)["fine/1"] is READY


async def test_ensembles_that_nest_too_deep_are_refused(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "e0")
    add_model(tmp_path, "e1", ensemble_of("e0"))
    for depth in range(2, NESTING_MAX + 3):
        add_model(tmp_path, f"e{depth}", ensemble_of("e0", f"e{depth - 1}"))
    async with running(tmp_path, device_factory=FakeDevices(1.0)) as core:
        deepest = f"e{NESTING_MAX}"
        assert reasons(core) == {
            f"e{depth}": (
                f"Invalid argument: ensemble 'e{depth}' nests ensembles {depth} deep, down to "
                f"'e1'; expected at most {NESTING_MAX}"
            )
            for depth in (NESTING_MAX + 1, NESTING_MAX + 2)
        }
        left = ask(core, deepest)
        await trio.sleep(NESTING_MAX - 0.5)  # the innermost model runs
        left.close()
        assert (await ask(core, deepest).receive()).error is None


@pytest.mark.parametrize("cache", ["", "response_cache { enable: true }"])
async def test_an_ensemble_over_sequences_does_not_load_with_a_cache(
    autojump_clock: MockClock, tmp_path: Path, cache: str
) -> None:
    add_model(tmp_path, "plain")
    add_model(tmp_path, "counter", IDENTITY + "sequence_batching { }")
    add_model(tmp_path, "inner", ensemble_of("plain", "counter"))
    add_model(tmp_path, "direct", ensemble_of("plain", "counter") + cache)
    add_model(tmp_path, "outer", ensemble_of("plain", "inner") + cache)
    add_model(tmp_path, "fine", ensemble_of("plain", "plain") + "response_cache { enable: true }")
    async with running(tmp_path) as core:
        assert states(core)["fine/1"] is states(core)["inner/1"] is READY
        refused = {
            name: (
                f"Invalid argument: ensemble '{name}': the response cache does not work with step "
                f"1 (model '{model}'), since model 'counter' has sequence_batching and answers by "
                "what came before; disable response_cache"
            )
            for name, model in (("direct", "counter"), ("outer", "inner"))
        }
        assert reasons(core) == (refused if cache else {})


async def test_a_version_that_is_not_loaded_is_in_the_reason(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "m", IDENTITY, versions=("1", "3"))
    add_model(tmp_path, "latest", ensemble_of("m"))
    add_model(tmp_path, "three", ensemble_of("m", version="3"))
    add_model(tmp_path, "seven", ensemble_of("m", version="7"))
    add_model(tmp_path, "zero", ensemble_of("m", version="0"))
    async with running(tmp_path) as core:
        assert states(core)["latest/1"] is states(core)["three/1"] is READY
        assert "step 0 (model 'm') needs version 7 of model 'm'" in reasons(core)["seven"]
        assert reasons(core)["zero"].endswith(
            "an absent model_version reads as 0, -1 asks for the latest"
        )
        for name in ("latest", "three"):
            assert (await ask(core, name).receive()).error is None


async def test_an_ensemble_needs_a_version_directory(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "m")
    add_model(tmp_path, "e", ensemble_of("m"), versions=())
    async with running(tmp_path) as core:
        assert "has no version directory" in reasons(core)["e"]


async def test_an_ensemble_that_does_not_fit_its_models_is_not_loaded(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "m", IDENTITY.replace("TYPE_INT32", "TYPE_FP32"))
    add_model(tmp_path, "e", ensemble_of("m"))
    async with running(tmp_path) as core:
        assert states(core) == {"e/1": UNAVAILABLE, "m/1": READY}
        assert reasons(core)["e"].startswith(
            "Invalid argument: ensemble 'e': tensor 'INPUT0' has data type INT32"
        )


async def test_requests_of_ensembles_finish_all_their_steps_while_the_server_stops(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "m")
    add_model(tmp_path, "e", ensemble_of("m", "m", "m"))
    async with running(tmp_path, device_factory=FakeDevices(2.0)) as core:
        reply = ask(core, "e")
        await trio.sleep(1.0)
        assert await core.stop()
        assert (await reply.receive()).error is None
        assert trio.current_time() == 6.0


async def test_a_stop_cuts_ensembles_off_at_its_deadline(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    add_model(tmp_path, "m")
    add_model(tmp_path, "e", ensemble_of("m", "m", "m"))
    options = {"device_factory": FakeDevices(2.0), "exit_timeout_s": 3.0}
    async with running(tmp_path, **options) as core:
        reply = ask(core, "e")
        await trio.sleep(1.0)
        await core.stop()
        assert (await reply.receive()).error is not None
        assert core.router.table.index()[0].state is UNAVAILABLE


def test_models_are_loaded_in_waves_and_circles_are_refused() -> None:
    ordered, refused = waves({"c": ["b", "x"], "b": ["a"], "a": ["x"], "d": []})
    assert ordered == [["a", "d"], ["b"], ["c"]]
    assert refused == {}
    ordered, refused = waves(
        {"p": ["q"], "q": ["p"], "r": ["s"], "s": ["r", "p"], "t": ["p"], "u": []}
    )
    assert ordered == [["t", "u"]]
    assert sorted(refused) == ["p", "q", "r", "s"]
    assert refused["q"].message == "ensemble 'q' uses itself: 'q' -> 'p' -> 'q'"
    assert waves({"self": ["self"]})[1]["self"].message == (
        "ensemble 'self' uses itself: 'self' -> 'self'"
    )
