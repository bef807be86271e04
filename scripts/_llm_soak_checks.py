"""What scripts/soak-llm asks a server about itself, and what has to be true of that."""

from __future__ import annotations

import os
import re
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from tests.support.llm_soak import Left, TracedEnd, traced_ends
from tests.support.server_process import HOST, ServerProcess

BYTE_BUDGET = 16 * 1024 * 1024
LEAK_MAX_BYTES = 64 * 1024
"""Of the byte budget, less than 100 bytes a request; the checks' own connections hold some."""
SETTLE_LIMIT_S = 12.0
"""For the server to notice the last clients leave; trio's idle worker threads end in this time."""
POLL_S = 0.05
GROWTH_MAX_BYTES = 48 * 1024 * 1024
"""Allocator noise of a Python process under load, and state that is kept for prompts."""
IN_TIME_MIN = 0.25
"""Part of the clients that left before their text's end; with fewer the run shows little."""
FOR_NOBODY_MAX = 0.4
"""Part of the texts in rows that come to their end before the server can know that nobody waits."""


def get(url: str, data: bytes | None = None) -> bytes:
    """What a call answers.

    Raises:
      urllib.error.HTTPError: with another status than 200.
    """
    with urllib.request.urlopen(f"http://{url}", data=data) as answer:
        content: bytes = answer.read()
        return content


def counted(server: ServerProcess) -> dict[str, Any]:
    """The statistics of the only model."""
    (model,) = orjson.loads(get(f"{server.http_url}/v2/models/stats"))["model_stats"]
    assert isinstance(model, dict)
    return model


def metrics(server: ServerProcess, name: str) -> dict[str, float]:
    """The metrics whose names begin so: name and labels -> value."""
    text = get(f"{HOST}:{server.metrics_port}/metrics").decode()
    found = re.findall(rf"^({name}.*) (\S+)$", text, re.MULTILINE)
    return {labelled: float(value) for labelled, value in found}


def longest_s(server: ServerProcess, family: str) -> float:
    """The upper bound of the last bucket of a histogram that is not empty."""
    buckets = metrics(server, f"{family}_bucket")
    most = max(buckets.values())
    full = [name for name, count in buckets.items() if count == most]
    return min(float(bound) for bound in re.findall(r'le="([^"]*)"', " ".join(full)))


def mean_ms(total: Mapping[str, int]) -> float:
    """The mean of what the statistics have as a count and nanoseconds."""
    return total["ns"] / max(total["count"], 1) / 1e6


def pending(server: ServerProcess) -> float:
    """Requests that no engine has taken yet."""
    return sum(metrics(server, "nv_inference_pending_request_count").values())


def footprint(server: ServerProcess) -> tuple[int, int]:
    """Descriptors and threads of the server."""
    proc = Path("/proc") / str(server.process.pid)
    return len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))


def check_footprint(
    server: ServerProcess, before: tuple[int, int], before_bytes: int, faults: list[str]
) -> None:
    """That it has no more descriptors and threads than before, and hardly more memory."""
    end_s = time.perf_counter() + SETTLE_LIMIT_S
    while True:
        after = footprint(server)
        is_more = after[0] > before[0] or after[1] > before[1]
        if not is_more or time.perf_counter() > end_s:
            break
        time.sleep(POLL_S)
    if is_more:
        faults.append(f"expected {before} descriptors and threads as before, got {after}")
    grown_bytes = server.rss_bytes() - before_bytes
    if grown_bytes > GROWTH_MAX_BYTES:
        faults.append(f"expected {GROWTH_MAX_BYTES} more bytes at most, got {grown_bytes}")
    print(f"descriptors and threads {before} -> {after}, memory {grown_bytes / 1e6:+.1f} MB")


def check_idle(server: ServerProcess, faults: list[str]) -> None:
    """That nothing is left of anybody: no sequence, no state, no request, no bytes."""
    end_s = time.perf_counter() + SETTLE_LIMIT_S
    while True:
        model = counted(server)
        llm = model["llm_stats"]
        sequences, used_bytes = llm["sequences"], llm["kv_cache_bytes"]["used"]
        waiting = pending(server)
        if not (any(sequences.values()) or used_bytes or waiting):
            break
        if time.perf_counter() > end_s:
            what = f"{sequences}, {used_bytes} bytes of KV state, {waiting:g} pending requests"
            faults.append(f"expected nothing to be left, got {what}")
            break
        time.sleep(POLL_S)
    try:
        body = bytes(BYTE_BUDGET - LEAK_MAX_BYTES)
        get(f"{server.http_url}/v2/models/{model['name']}/infer", body)
    except urllib.error.HTTPError as error:
        if error.code == 503:  # another status is about what was read, so there was room for it
            faults.append(f"expected room for {len(body)} bytes, got {error.read()!r}")


def written_traces(server: ServerProcess, file: Path) -> list[TracedEnd]:
    """Stop tracing, and read what was traced."""
    get(f"{server.http_url}/v2/trace/setting", b'{"trace_level": ["OFF"]}')
    stats = counted(server)["inference_stats"]
    ended = stats["success"]["count"] + stats["fail"]["count"]
    end_s = time.perf_counter() + SETTLE_LIMIT_S
    while True:
        ends: list[TracedEnd] = []
        try:
            for part in file.parent.glob(f"{file.name}*"):
                ends += traced_ends(orjson.loads(part.read_bytes()))
        except orjson.JSONDecodeError:  # it is being written
            ends.clear()
        if len(ends) >= ended or time.perf_counter() > end_s:
            return ends
        time.sleep(POLL_S)


def check_counts(
    server: ServerProcess,
    left: Sequence[Left],
    texts: int,
    traces: Sequence[TracedEnd],
    faults: list[str],
) -> None:
    """That each request is counted once, for what became of it; `texts` were read to their end."""
    model = counted(server)
    ends, llm = model["inference_stats"], model["llm_stats"]
    success, failure = ends["success"]["count"], ends["fail"]["count"]
    cancelled, finished = llm["cancelled_requests"], llm["finished_sequences"]
    failures = metrics(server, "nv_inference_request_failure")
    reported = sum(value for name, value in failures.items() if 'reason="CANCELED"' in name)
    print(f"{success} requests answered, {failure} cancelled: {cancelled}")
    for what, wanted, got in (
        ("counted requests", len(traces), success + failure),
        ("requests that their clients cancelled", failure,
         cancelled["client"] + cancelled["deadline"]),
        ("cancelled requests", failure, sum(cancelled.values())),
        ("canceled ones in the metrics", failure, reported),
        ("finished sequences", success, finished["length"]),
    ):  # fmt: skip
        if wanted != got:
            faults.append(f"expected {wanted} {what}, got {got}")
    by_seed = {each.seed: each for each in traces}
    found = [(each, by_seed[each.wanted.seed]) for each in left if each.wanted.seed in by_seed]
    ended = sum(trace.end_ns < each.left_ns for each, trace in found)
    in_rows = sum(trace.computed for _, trace in found) - ended
    for_nobody = success - texts - ended
    if for_nobody > in_rows * FOR_NOBODY_MAX:
        faults.append(f"expected texts to be cancelled, got {for_nobody} of {in_rows} whole")
    seen = Counter(each.seed for each in traces)
    for each in left:
        times = seen[each.wanted.seed]
        if times > 1 or (each.heard and not times):
            faults.append(f"expected one trace of {each}, got {times}")


def check_times(
    server: ServerProcess,
    left: Sequence[Left],
    traces: Sequence[TracedEnd],
    slack_ms: float,
    faults: list[str],
) -> None:
    """How long the engine kept what nobody waited for."""
    by_seed = {each.seed: each for each in traces}
    rows: dict[str, list[float]] = defaultdict(list)
    unheard = ended = 0
    for each in left:
        trace = by_seed.get(each.wanted.seed)
        took_ms = -1.0 if trace is None else (trace.end_ns - each.left_ns) / 1e6
        if trace is None:
            unheard += 1
        elif took_ms < 0:
            ended += 1
        else:
            where = "in a row" if trace.computed else "in a queue"
            for row in ("all", each.way, each.wanted.face, f"left: {each.point}", where):
                rows[row].append(took_ms)
    llm = counted(server)["llm_stats"]
    step_ms = mean_ms(llm["step"])
    cancelled = len(rows["all"])
    print(
        f"{len(left)} clients left: {unheard} before the server had their requests,"
        f" {ended} behind their end, {cancelled} in between.\n"
        f"From there to the end in the engine, in milliseconds:\n"
        f"{'':24}{'number':>8}{'p50':>8}{'p99':>8}{'most':>8}"
    )
    for row, times_ms in sorted(rows.items()):
        times_ms.sort()
        p50, p99 = times_ms[len(times_ms) // 2], times_ms[len(times_ms) * 99 // 100]
        print(f"{row:24}{len(times_ms):8}{p50:8.2f}{p99:8.2f}{times_ms[-1]:8.2f}")
        if row == "all" and p99 > step_ms + slack_ms:
            faults.append(
                f"expected 99 of 100 requests to end within {step_ms + slack_ms:.1f} ms,"
                f" a step and {slack_ms:g} ms, got {p99:.1f} ms"
            )
    if cancelled < len(left) * IN_TIME_MIN:
        faults.append(f"expected more clients to leave in between, got {cancelled} of {len(left)}")
    for what, name, family in (
        ("steps", "step", "tritrio_llm_step_duration_seconds"),
        ("releases known to the server", "release", "tritrio_llm_cancellation_release_seconds"),
    ):
        most_ms = longest_s(server, family) * 1e3
        print(f"{llm[name]['count']} {what}: {mean_ms(llm[name]):.2f} ms, at most {most_ms:g} ms")
    print(f"load of the machine {os.getloadavg()[0]:.1f}")
