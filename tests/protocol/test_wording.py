"""What is said of a model in front of a message: once."""

from __future__ import annotations

import pytest

from tritrio.protocol.wording import about_model, without_model


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("it is odd", "model 'a.b': it is odd"),
        ("model 'a.b': it is odd", "model 'a.b': it is odd"),
        ("model 'a.b' failed to load", "model 'a.b' failed to load"),
        ("ensemble 'a.b' needs itself", "ensemble 'a.b' needs itself"),
        ("model 'a.' is odd", "model 'a.b': model 'a.' is odd"),
    ],
)
def test_a_message_about_a_model_names_it_once(message: str, shown: str) -> None:
    assert about_model("a.b", message) == shown


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("Invalid argument: model 'a.b': it is odd", "Invalid argument: it is odd"),
        ("Internal: model 'a.b' version 12: no file\nat all", "Internal: no file\nat all"),
        ("ensemble 'a.b': it is odd", "it is odd"),
        ("Internal: model 'a.b' is odd", "Internal: model 'a.b' is odd"),
        ("Internal: model 'a_b': it is odd", "Internal: model 'a_b': it is odd"),
        ("unloaded", "unloaded"),
        ("", ""),
    ],
)
def test_a_reason_behind_the_name_of_a_model_does_not_repeat_it(reason: str, shown: str) -> None:
    assert without_model("a.b", reason) == shown
