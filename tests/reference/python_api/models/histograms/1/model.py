"""Histograms of a model's own."""

from seen import Sees, outcome

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def initialize(self, args):
        self.family = pb_utils.MetricFamily(
            "api_histogram", "A histogram", pb_utils.MetricFamily.HISTOGRAM
        )
        self.metric = self.family.Metric(labels={"a": "1"}, buckets=[0.5, 2, 10])

        self.counters = pb_utils.MetricFamily(
            "api_shared_counter", "A counter", pb_utils.MetricFamily.COUNTER
        )
        self.counter = self.counters.Metric({"both": "yes"})
        self.counter.increment(1)

    def see_shared_counter(self, request):
        return self.counter.value()

    def see_shared_counter_incremented(self, request):
        self.counter.increment(2)
        return self.counter.value()

    def see_observe(self, request):
        return [outcome(self.metric.observe, value) for value in (0.5, 1, 2.5, 100, -1)]

    def see_value(self, request):
        return outcome(self.metric.value, words=["not supported", "unsupported"])

    def see_set(self, request):
        return outcome(self.metric.set, 1)

    def see_increment(self, request):
        return outcome(self.metric.increment, 1)

    def see_no_buckets(self, request):
        return outcome(lambda: self.family.Metric({"b": "1"}), words=["bucket"])

    def see_empty_buckets(self, request):
        return outcome(lambda: self.family.Metric({"c": "1"}, []), words=["bucket"])

    def see_descending_buckets(self, request):
        return outcome(lambda: self.family.Metric({"d": "1"}, [2, 1]))

    def see_buckets_of_text(self, request):
        return outcome(lambda: self.family.Metric({"e": "1"}, ["a"]))

    def see_same_labels(self, request):
        again = self.family.Metric({"a": "1"}, [0.5, 2, 10])
        return outcome(again.observe, 3)

    def see_same_labels_other_buckets(self, request):
        return outcome(lambda: self.family.Metric({"a": "1"}, [7]))
