"""The pytest plugin: `serve_models`, and async tests that use it.

It imports nothing of the server before a test asks for it, since pytest loads it for everybody.
PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from .testing import ServedModels

FIXTURE: Final = "serve_models"

TEST_LIMIT_S: Final = 86_400.0
"""Virtual seconds for a test: one that waits for what never comes gets there at once, and fails."""


@pytest.fixture(name=FIXTURE)
def serve_models_fixture() -> Callable[..., AbstractAsyncContextManager[ServedModels]]:
    """Run models in memory on virtual time; see `tritrio.testing.serve_models`."""
    from .testing import serve_models  # noqa: PLC0415 - see above

    return serve_models


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test that asks for `serve_models` by itself, on trio and a virtual clock."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = pyfuncitem.funcargs.keys() & inspect.signature(test).parameters.keys()
    if FIXTURE not in names:
        return None
    import trio  # noqa: PLC0415 - see above
    from trio.testing import MockClock  # noqa: PLC0415

    async def has_ended() -> bool:
        with trio.move_on_after(TEST_LIMIT_S) as limit:
            await partial(test, **{name: pyfuncitem.funcargs[name] for name in names})()
        return not limit.cancelled_caught

    if not trio.run(has_ended, clock=MockClock(autojump_threshold=0)):
        pytest.fail(
            f"the test waits for what never comes: {TEST_LIMIT_S:.0f} virtual seconds have passed"
        )
    return True
