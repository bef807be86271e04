"""What a name stands for where several repositories have models of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tritrio.actors._model_keys import (
    ModelNames,
    key_of,
    name_of,
    namespace_of,
    printed,
    said_of,
)
from tritrio.actors._repository_policy import LoadModel, ModelFiles, changes, grouped


@dataclass(frozen=True)
class Known:
    wanted: bool = True
    unloaded: bool = False


LYING, UNLOADED = Known(wanted=False), Known(wanted=False, unloaded=True)


def test_a_key_says_the_namespace_and_the_name() -> None:
    key = key_of("/models::a", "b::c")
    assert (namespace_of(key), name_of(key)) == ("/models::a", "b::c")
    assert printed(key) == "/models::a::b::c"
    plain = key_of("", "b::c")
    assert (plain, namespace_of(plain), name_of(plain), printed(plain)) == (
        "b::c",
        "",
        "b::c",
        "b::c",
    )


@pytest.mark.parametrize(
    ("models", "namespace", "keys"),
    [
        ({}, "", ["m"]),
        ({}, "/a", ["/a/m"]),
        ({"/a/m": Known()}, "", ["/a/m"]),
        ({"/a/m": Known(), "/b/m": Known()}, "", ["/a/m", "/b/m"]),
        ({"/a/m": Known(), "/b/m": Known()}, "/b", ["/b/m"]),
        ({"/a/m": Known(), "/b/m": Known()}, "/c", ["/a/m", "/b/m"]),
        ({"/a/m": Known(), "/b/m": LYING}, "/c", ["/a/m"]),
        ({"/a/m": Known(), "/b/m": LYING}, "/b", ["/b/m"]),
        ({"/a/m": Known(), "/b/m": UNLOADED}, "/b", ["/a/m"]),
        ({"/a/m": UNLOADED, "/b/m": UNLOADED}, "", ["/a/m"]),
        ({"m": Known(), "/b/m": Known()}, "", ["m", "/b/m"]),
    ],
)
def test_a_name_stands_for_the_model_of_the_own_namespace_or_for_all_that_are_wanted(
    models: dict[str, Known], namespace: str, keys: Sequence[str]
) -> None:
    names = ModelNames(models)
    assert names.candidates("m", namespace) == keys
    if not namespace and models:
        assert names.unique() == ({"m": keys[0]} if len(keys) == 1 else {})


def test_a_name_in_two_namespaces_is_two_models_to_load() -> None:
    here, there = (ModelFiles("m", Path(place, "m"), {}, namespace=place) for place in ("/a", "/b"))
    assert changes({}, grouped([[there], [here]])) == [LoadModel(here), LoadModel(there)]


def test_the_log_names_a_model_once() -> None:
    assert said_of("/a/m", "model 'm': no\n") == "model '/a::m': no"
    assert said_of("/a/m", "no") == "model '/a::m': no"
    assert said_of("m", "model 'm' failed: no;\n") == "model 'm' failed: no"
