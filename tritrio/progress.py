"""What the log says of how a server starts and stops."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import trio

from .actors.router import Router
from .actors.routing_table import IndexEntry, ModelState, ModelVersion
from .logs import printable
from .options import ServerOptions
from .protocol.wording import without_model

DRAIN_REPORT_S: Final = 1.0
"""Between two lines about what a stop waits for, as Triton has them."""

_log = logging.getLogger("tritrio")


def log_models(index: Sequence[IndexEntry], repositories: Iterable[Path]) -> None:
    """Say how each model fared at the start; those that nobody asked for are left out."""
    known = [entry for entry in index if entry.state is not ModelState.UNKNOWN]
    rows = [
        (
            entry.printed,
            entry.version or "",
            ": ".join(filter(None, (entry.state.value, without_model(entry.name, entry.reason)))),
        )
        for entry in known
    ]
    _log.info("%s", table("models", ("Model", "Version", "Status"), rows), extra={"table": True})
    for entry in known:
        if entry.state is not ModelState.READY:
            version = "" if entry.version is None else f" version {entry.version}"
            about = {"model": entry.name, "version": entry.version}
            reason = without_model(entry.name, entry.reason)
            text = "model %s%s is %s: %s"
            _log.error(text, entry.printed, version, entry.state.value, reason, extra=about)
    if not index:
        _log.warning(
            "there are no models in %s; the files of a model lie in MODEL/VERSION below it, such "
            "as MODEL/1/model.onnx",
            ", ".join(map(str, repositories)),
        )


def log_keys(options: ServerOptions) -> None:
    """Say which calls over HTTP need a key of OpenAI's API, if there are keys; not the keys."""
    count = len(set(options.openai_api_keys))
    if not count:
        return
    need = "the API key" if count == 1 else f"one of {count} API keys"
    more = ", but what --http-restricted-api asks for" if options.http_restricted_apis else ""
    _log.info("calls below /v1 need %s as bearer token; calls below /v2 need none%s", need, more)


async def log_drain(router: Router, frontends: Sequence[object], deadline_s: float) -> None:
    """Say every second what a stop waits for, and how long it will; until cancelled."""
    while True:
        await trio.sleep(DRAIN_REPORT_S)
        models = list(router.measured_models())
        _log.info(
            "stopping: %.0f s are left, %d model versions live, %s; %s",
            max(0.0, deadline_s - trio.current_time()),
            len(models),
            work_text(models),
            ", ".join(map(str, frontends)),
        )


def work_text(models: Iterable[ModelVersion]) -> str:
    """Return in words what some model versions have to do."""
    counted = [model.statistics for model in models]
    llm = [statistics.llm.totals() for statistics in counted if statistics.llm is not None]
    texts = sum(each.running + each.waiting + each.paused for each in llm)
    queued = sum(statistics.pending_count for statistics in counted)
    return f"{queued} requests are queued" + (f", {texts} texts go on" if llm else "")


def table(heading: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table below its heading; log it with `extra={"table": True}`."""
    cells = [columns, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    lines = [
        "|".join(["", *(f" {cell:{width}} " for cell, width in zip(row, widths, strict=True)), ""])
        for row in cells
    ]
    return "\n".join([heading, rule, lines[0], rule, *lines[1:], *([rule] if rows else [])])
