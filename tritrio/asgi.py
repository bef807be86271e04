"""The HTTP API as an ASGI application, to serve on hypercorn's trio worker or to mount in another.

    from pathlib import Path
    from tritrio.asgi import application
    from tritrio.options import ServerOptions

    app = application(ServerOptions(model_repositories=(Path("models"),)))

Saved as `serve.py`, this is served by `hypercorn --worker-class trio serve:app`. Below a prefix it
is mounted by any ASGI framework that puts the prefix into `root_path`, as the protocol says. Where
the framework does not pass the lifespan on to what is mounted, its own lifespan enters `serving`.

There is no gRPC and no metrics port here, and the addresses and ports among the options mean
nothing. Stopping is the ASGI server's: it first lets its requests finish, then ends the lifespan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import final

import trio

from .actors.http_asgi import HttpApplication, Receive, Scope, Send
from .options import ServerOptions
from .parts import build_parts
from .server import StartError, start_core


@asynccontextmanager
async def serving(options: ServerOptions) -> AsyncIterator[HttpApplication]:
    """Load the models, and unload them in the end; needs trio.

    Args:
      options: What to serve.

    Yields:
      The ASGI application for `http` scopes.

    Raises:
      StartError: a repository cannot be read, or a model failed (with `exit_on_error`).
    """
    fault: StartError | None = None
    async with trio.open_nursery() as nursery:
        try:
            core = await start_core(options, nursery)
        except StartError as error:  # not in the nursery, which would wrap it in a group
            fault = error
            nursery.cancel_scope.cancel()
        else:
            parts = build_parts(options, core)
            yield HttpApplication(api=parts.http_api, budget=parts.budget, calls=parts.calls)
            await core.stop()
    if fault is not None:
        raise fault


@final
class Application:
    """An ASGI 3 application whose lifespan is that of its models."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._http: HttpApplication | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one scope.

        Raises:
          RuntimeError: a request came without a lifespan before it; the server is at fault.
        """
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._http is not None:
            await self._http(scope, receive, send)
        else:
            raise RuntimeError(
                "no models are loaded: this application needs a server with lifespan support"
            )

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            async with serving(self._options) as self._http:
                await send({"type": "lifespan.startup.complete"})
                await receive()
        except StartError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        finally:
            self._http = None
        await send({"type": "lifespan.shutdown.complete"})


def application(options: ServerOptions) -> Application:
    """Return the HTTP API of a model repository as an ASGI 3 application.

    Args:
      options: What to serve; at least `model_repositories`.
    """
    return Application(options)
