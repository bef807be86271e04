"""What models measure is on the metrics port as long as they are loaded."""

from __future__ import annotations

from pathlib import Path

from tests.support.calling import calling_core, write_caller
from tritrio.actors.metrics_collector import ModelCollector, render

from prometheus_client import CollectorRegistry  # isort: skip

MEASURING = """
class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily("words", "Words\\nread", pb_utils.MetricFamily.COUNTER)
        self.words = family.Metric({"model": "a", "version": "1"})
        family = pb_utils.MetricFamily("a_total", "All", pb_utils.MetricFamily.GAUGE)
        self.all = family.Metric()
        family = pb_utils.MetricFamily("length", "Letters", pb_utils.MetricFamily.HISTOGRAM)
        self.lengths = family.Metric({"of": 'a "word"'}, buckets=[1, 2.5])

    def execute(self, requests):
        for request in requests:
            for word in asked(request).split():
                self.words.increment(1)
                self.lengths.observe(len(word))
            self.all.set(self.words.value())
        return [answer("") for request in requests]
"""
SHOWN = """\
# HELP a_total All
# TYPE a_total gauge
a_total 4.0
# HELP length Letters
# TYPE length histogram
length_bucket{le="1",of="a \\"word\\""} 1.0
length_bucket{le="2.5",of="a \\"word\\""} 2.0
length_bucket{le="+Inf",of="a \\"word\\""} 4.0
length_sum{of="a \\"word\\""} 9.0
length_count{of="a \\"word\\""} 4.0
# HELP words Words\\nread
# TYPE words counter
words{model="a",version="1"} 4.0
"""


async def test_the_metrics_of_a_model_are_shown_until_it_is_unloaded(tmp_path: Path) -> None:
    write_caller(tmp_path, "a", MEASURING, instances=2)
    registry = CollectorRegistry()
    async with calling_core(tmp_path) as core:
        store = core.core.custom_metrics
        registry.register(ModelCollector(list, custom=store))
        for text in ("a bb", "ccc ddd"):
            await core.ask("a", text)
        text = render(registry).decode()
        assert text[text.index("# HELP a_total") :] == SHOWN
    assert store.families() == []
