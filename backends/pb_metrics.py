"""`pb_utils.MetricFamily` and `Metric`: a model's own metrics on the server's metrics port."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, final

from .metric_store import Labels, MetricKind, Metrics, MetricStore, labels_of
from .pb_context import ModelContext, model_context
from .pb_tensor import TritonModelException

_LOCAL: Final = MetricStore()
"""Where the metrics of models that run without a server are."""


@final
class MetricFamily:
    """Metrics of one name.

    Made again, under the same name and with the same kind, it is the same family. It goes with the
    last model that has metrics of it.

    Args:
      name: As Prometheus allows it.
      description: What the metrics say.
      kind: `MetricFamily.COUNTER`, `.GAUGE` or `.HISTOGRAM`.

    Raises:
      TritonModelException: the name is not allowed, or is one of a family of another kind.
    """

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        if not isinstance(kind, MetricKind):
            raise TritonModelException(
                "the kind of a MetricFamily must be MetricFamily.COUNTER, GAUGE or HISTOGRAM, got "
                f"{kind!r}"
            )
        if not _is_text(description):
            raise TritonModelException(
                f"the description of a MetricFamily must be Unicode text, got {description!r}"
            )
        self._context = model_context()
        self._metrics = _metrics_of(self._context)
        try:
            self._metrics.declare(name, description, kind)
        except ValueError as error:
            raise TritonModelException(str(error)) from None
        self._name = name
        self._kind = kind
        self._description = description

    def Metric(  # noqa: N802 - the name models know
        self,
        labels: Mapping[str, str] | None = None,
        buckets: Sequence[float] | None = None,
    ) -> Metric:
        """Return the metric with these labels; the same one for equal labels.

        Args:
          labels: Name -> value.
          buckets: Upper bounds of a histogram's buckets, ascending; a last one up to infinity is
            added.

        Raises:
          TritonModelException: a label is no text, or has no name that Prometheus allows; or the
            buckets are missing, not ascending, not those of the metric, or of no histogram.
        """
        for name, value in (labels or {}).items():
            if not (_is_text(name) and _is_text(value)):
                raise TritonModelException(
                    f"the labels of a Metric must be Unicode text, got {name!r}: {value!r}"
                )
        bounds = self._bounds(buckets)
        found = labels_of(labels)
        owner = None if self._context is None else self._context.number
        try:
            self._metrics.declare(self._name, self._description, self._kind)  # it may be gone
            self._metrics.add(owner, self._name, found, bounds)
        except ValueError as error:
            raise TritonModelException(str(error)) from None
        return Metric(self._metrics, self._name, self._kind, found)

    def _bounds(self, buckets: Sequence[float] | None) -> tuple[float, ...]:
        if self._kind is not MetricKind.HISTOGRAM:
            if buckets:
                raise TritonModelException(
                    f"buckets are for histograms, {self._name!r} is a {self._kind.value}"
                )
            return ()
        if not buckets:
            raise TritonModelException(f"histogram {self._name!r} needs buckets, got none")
        bounds = tuple(float(bound) for bound in buckets)
        if any(math.isnan(bound) for bound in bounds) or any(
            first >= second for first, second in pairwise(bounds)
        ):
            raise TritonModelException(
                f"the buckets of histogram {self._name!r} must ascend, got {list(bounds)}"
            )
        return bounds[:-1] if bounds[-1] == math.inf else bounds


def _is_text(value: object) -> bool:
    """Whether a value is text that can be shown: without lone surrogates."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


@final
class Metric:
    """One metric of a family; made by `MetricFamily.Metric`, for any thread."""

    __slots__ = ("_kind", "_labels", "_metrics", "_name")

    def __init__(self, metrics: Metrics, name: str, kind: MetricKind, labels: Labels) -> None:
        self._metrics = metrics
        self._name = name
        self._kind = kind
        self._labels = labels

    def increment(self, value: float) -> None:
        """Add to a counter or gauge.

        Raises:
          TritonModelException: it is a histogram, or a counter and the value is negative.
        """
        self._require("increment()", MetricKind.COUNTER, MetricKind.GAUGE)
        if self._kind is MetricKind.COUNTER and not value >= 0:
            raise TritonModelException(
                f"counter {self._name!r} cannot be incremented by a negative value, got {value}"
            )
        self._metrics.increment(self._name, self._labels, float(value))

    def set(self, value: float) -> None:
        """Set a gauge.

        Raises:
          TritonModelException: it is none.
        """
        self._require("set()", MetricKind.GAUGE)
        self._metrics.set(self._name, self._labels, float(value))

    def observe(self, value: float) -> None:
        """Count a value in a histogram.

        Raises:
          TritonModelException: it is none.
        """
        self._require("observe()", MetricKind.HISTOGRAM)
        self._metrics.observe(self._name, self._labels, float(value))

    def value(self) -> float:
        """Return the value of a counter or gauge.

        Raises:
          TritonModelException: it is a histogram.
        """
        self._require("value()", MetricKind.COUNTER, MetricKind.GAUGE)
        return self._metrics.value(self._name, self._labels)

    def _require(self, what: str, *kinds: MetricKind) -> None:
        if self._kind not in kinds:
            raise TritonModelException(
                f"{what} is not supported for {self._name!r}, which is a {self._kind.value}"
            )


def _metrics_of(context: ModelContext | None) -> Metrics:
    server = None if context is None else context.server
    return _LOCAL if server is None else server.metrics
