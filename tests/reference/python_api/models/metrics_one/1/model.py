"""Metrics of a model's own."""

from seen import Sees, outcome

import triton_python_backend_utils as pb_utils


class TritonPythonModel(Sees):
    def initialize(self, args):
        self.name = args["model_name"]
        self.kept = []  # the reference drops a shared metric with the first object that goes
        self.counters = pb_utils.MetricFamily(
            "api_shared_counter", "A counter", pb_utils.MetricFamily.COUNTER
        )
        self.counter = self.counters.Metric({"model": self.name})
        self.counter.increment(1)
        self.common = self.counters.Metric({"both": "yes"})
        self.common.increment(1)
        self.gauges = pb_utils.MetricFamily(
            f"api_gauge_{self.name}", "A gauge", pb_utils.MetricFamily.GAUGE
        )
        self.gauge = self.gauges.Metric(labels={"a": "1", "b": "2"})

    def see_increment(self, request):
        return [outcome(self.counter.increment, 2), self.counter.value()]

    def see_increment_by_fraction(self, request):
        return [outcome(self.counter.increment, 0.5), self.counter.value()]

    def see_increment_by_zero(self, request):
        return [outcome(self.counter.increment, 0), self.counter.value()]

    def see_increment_by_negative(self, request):
        return [outcome(self.counter.increment, -1, words=["negative"]), self.counter.value()]

    def see_increment_by_text(self, request):
        return outcome(self.counter.increment, "1")

    def see_increment_by_nothing(self, request):
        return outcome(self.counter.increment)

    def see_set_of_counter(self, request):
        return outcome(self.counter.set, 1)

    def see_observe_of_counter(self, request):
        return outcome(self.counter.observe, 1)

    def see_value_type(self, request):
        return type(self.counter.value()).__name__

    def see_common(self, request):
        return outcome(self.common.increment, 1)

    def see_gauge(self, request):
        self.gauge.set(5)
        self.gauge.increment(-2)
        return self.gauge.value()

    def see_gauge_increment(self, request):
        self.gauge.increment(0.25)
        return self.gauge.value()

    def see_observe_of_gauge(self, request):
        return outcome(self.gauge.observe, 1)

    def see_unset_gauge(self, request):
        return self.gauges.Metric({"c": "3"}).value()

    def see_equal_labels(self, request):
        again = self.gauges.Metric({"b": "2", "a": "1"})
        again.set(11)
        return self.gauge.value()

    def see_no_labels(self, request):
        return outcome(lambda: self.gauges.Metric().value())

    def see_labels_none(self, request):
        return outcome(lambda: self.gauges.Metric(None).value())

    def see_label_of_number(self, request):
        return outcome(lambda: self.gauges.Metric({"d": 1}))

    def see_labels_of_list(self, request):
        return outcome(lambda: self.gauges.Metric(["d"]))

    def see_label_name(self, request):
        return outcome(lambda: self.gauges.Metric({"no name": "x"}))

    def see_same_family_again(self, request):
        again = pb_utils.MetricFamily(
            "api_shared_counter", "A counter", pb_utils.MetricFamily.COUNTER
        )
        self.kept += [again, again.Metric({"model": self.name})]
        return self.kept[-1].value()

    def see_same_family_other_text(self, request):
        counter = pb_utils.MetricFamily.COUNTER
        return outcome(
            lambda: self.kept.append(pb_utils.MetricFamily("api_shared_counter", "Other", counter))
        )

    def see_same_family_other_kind(self, request):
        return outcome(
            lambda: pb_utils.MetricFamily(
                "api_shared_counter", "A counter", pb_utils.MetricFamily.GAUGE
            ),
            words=["kind", "type"],
        )

    def see_family_name(self, request):
        return outcome(lambda: pb_utils.MetricFamily("no name", "A", pb_utils.MetricFamily.GAUGE))

    def see_empty_family_name(self, request):
        return outcome(lambda: pb_utils.MetricFamily("", "A", pb_utils.MetricFamily.GAUGE))

    def see_name_of_the_server(self, request):
        return outcome(
            lambda: pb_utils.MetricFamily("nv_inference_count", "A", pb_utils.MetricFamily.GAUGE)
        )

    def see_kind_of_number(self, request):
        return outcome(lambda: pb_utils.MetricFamily("api_number", "A", 1))

    def see_kind_left_out(self, request):
        return outcome(lambda: pb_utils.MetricFamily("api_left_out", "A"))

    def see_by_keyword(self, request):
        return outcome(
            lambda: pb_utils.MetricFamily(
                name="api_keyword", description="A", kind=pb_utils.MetricFamily.GAUGE
            )
        )

    def see_metric_without_family(self, request):
        def made():
            return pb_utils.MetricFamily(
                "api_short_lived", "A", pb_utils.MetricFamily.GAUGE
            ).Metric({"a": "1"})

        metric = made()
        return outcome(lambda: metric.set(4) or metric.value())

    def see_not_a_number(self, request):
        return outcome(lambda: self.gauges.Metric({"n": "1"}).set(float("nan")))

    def see_buckets_of_gauge(self, request):
        return outcome(lambda: self.gauges.Metric({"e": "1"}, buckets=[1, 2]))
