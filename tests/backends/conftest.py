"""Fixtures of the backend tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.backends.builders import loaded, source_in
from tritrio.backends.base import ModelInstance
from tritrio.backends.function_model import FunctionBackend
from tritrio.backends.model_function import function_of, holding

Load = Callable[..., ModelInstance]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Loads a decorated function as the model "m"."""
    with ExitStack() as stack:

        def load(target: Callable[..., Any]) -> ModelInstance:
            function = function_of(target)
            assert function is not None
            source = source_in(tmp_path)
            stack.enter_context(holding(source.model_directory, function))
            return loaded(FunctionBackend(), source, function.config)

        yield load
