"""What a program hears that gives a server in its process things of another type."""

from __future__ import annotations

from typing import Any

import pytest

import tritrio

from .models import double

ROW: Any = {"x": [[1]]}


@pytest.mark.parametrize(
    ("inputs", "options", "told"),
    [
        (None, {}, "inputs must be a mapping of names to arrays, got None"),
        ([1], {}, "inputs must be a mapping of names to arrays, got an object of type list"),
        ({3: [[1]]}, {}, "the name of an input must be a str, got an object of type int"),
        (ROW, {"id": 3}, "id must be a str, got an object of type int"),
        (ROW, {"id": None}, "id must be a str, got None"),
        (ROW, {"outputs": [3]}, "the name of an output must be a str, got an object of type int"),
        (ROW, {"outputs": "y"}, "outputs must be a sequence of names, got an object of type str"),
        (ROW, {"outputs": None}, "outputs must be a sequence of names, got None"),
        (
            ROW,
            {"parameters": [3]},
            "parameters must be a mapping of names to values, got an object of type list",
        ),
        (
            ROW,
            {"parameters": {3: 4}},
            "the name of a parameter must be a str, got an object of type int",
        ),
    ],
)
async def test_what_has_another_type_in_a_request_is_said(
    inputs: Any, options: Any, told: str
) -> None:
    async with tritrio.Server(double) as server:
        model = server.model("double")
        with pytest.raises(TypeError) as caught:
            await model.infer(inputs, **options)
        assert str(caught.value) == told
        with pytest.raises(TypeError) as caught:
            model.stream(inputs, **options)
        assert str(caught.value) == told
        assert (await model.infer(ROW, parameters=None))["y"].tolist() == [[2.0]]


async def test_names_and_versions_of_models_have_their_types() -> None:
    three: Any = 3
    name_told = "the name of a model must be a str, got an object of type int"
    async with tritrio.Server(double, model_control="explicit") as server:
        with pytest.raises(TypeError, match=name_told):
            server.model(three)
        for change in (server.load, server.unload):
            with pytest.raises(TypeError, match=name_told):
                await change(three)
        nothing: Any = None
        with pytest.raises(TypeError, match="the version of a model must be a str, got None"):
            server.model("double", nothing)
        await server.load("double")
        assert (await server.model("double", 1).infer(ROW))["y"].tolist() == [[2.0]]


def test_a_blocking_server_says_the_same() -> None:
    three: Any = 3
    with tritrio.BlockingServer(double) as server:
        with pytest.raises(
            TypeError, match="the name of a model must be a str, got an object of type int"
        ):
            server.model(three)
        with pytest.raises(TypeError, match="inputs must be a mapping of names to arrays"):
            server.model("double").infer(three)
