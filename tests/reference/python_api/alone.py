"""What ours alone is asked: the reference does not answer these, or crashes now and then."""

from __future__ import annotations

from ..cases import Differs
from .outcomes import HANGS, Table, failed, raised, returned

ALONE: Table = {
    "calls_many.see_error_between": [
        [["OUTPUT0", [1], ["float32", [1], [["float32", "1.0"]]]]],
        failed("NOT_FOUND", "said the model"),
        [["OUTPUT0", [1], ["float32", [1], [["float32", "2.0"]]]]],
    ],
    "dlpack.see_columns_first": raised("TritonModelException", "contiguous"),
    "dlpack.see_complex": returned(["D", [1], ["complex64", [1], [["complex64", "0j"]]]]),
    "dlpack.see_empty_name": raised("TritonModelException", "name"),
    "dlpack.see_every_second_column": raised("TritonModelException", "contiguous"),
    "dlpack.see_from_an_array": returned(
        [
            "D",
            [2, 3],
            [
                "float32",
                [2, 3],
                [
                    ["float32", "0.0"],
                    ["float32", "1.0"],
                    ["float32", "2.0"],
                    ["float32", "3.0"],
                    ["float32", "4.0"],
                    ["float32", "5.0"],
                ],
            ],
        ]
    ),
    "dlpack.see_from_an_object": returned(
        [
            "D",
            [2, 3],
            [
                "float32",
                [2, 3],
                [
                    ["float32", "0.0"],
                    ["float32", "1.0"],
                    ["float32", "2.0"],
                    ["float32", "3.0"],
                    ["float32", "4.0"],
                    ["float32", "5.0"],
                ],
            ],
        ]
    ),
    "dlpack.see_no_dimensions": returned(["D", [], ["float32", [], [["float32", "1.5"]]]]),
    "dlpack.see_no_elements": returned(["D", [0, 2], ["float32", [0, 2], []]]),
    "dlpack.see_owner_gone": [
        "float32",
        [2, 3],
        [
            ["float32", "1.0"],
            ["float32", "2.0"],
            ["float32", "3.0"],
            ["float32", "4.0"],
            ["float32", "5.0"],
            ["float32", "6.0"],
        ],
    ],
    "dlpack.see_shared_memory": ["float32", [1], [["float32", "7.0"]]],
    "explicit.see_load": raised("TritonModelException", "explicit"),
    "explicit.see_load_with_config": raised("TritonModelException"),
    "explicit.see_ready_no_name": returned(False),
    "explicit.see_ready_version_of_text": returned(False),
    "explicit.see_unload": raised("TritonModelException", "explicit"),
    "explicit.see_unload_dependents": raised("TritonModelException"),
    "histograms.see_buckets_of_text": raised("ValueError"),
    "histograms.see_descending_buckets": raised("TritonModelException"),
    "histograms.see_empty_buckets": raised("TritonModelException", "bucket"),
    "histograms.see_increment": raised("TritonModelException"),
    "histograms.see_no_buckets": raised("TritonModelException", "bucket"),
    "histograms.see_same_labels_other_buckets": raised("TritonModelException"),
    "histograms.see_set": raised("TritonModelException"),
    "histograms.see_value": raised("TritonModelException", "not supported"),
    "made_requests.see_is_cancelled": returned(False),
    "made_requests.see_sender_of_a_made_request": raised("TritonModelException"),
    "metrics_one.see_buckets_of_gauge": raised("TritonModelException"),
    "metrics_one.see_empty_family_name": raised("TritonModelException"),
    "metrics_one.see_family_name": raised("TritonModelException"),
    "metrics_one.see_increment_by_negative": [raised("TritonModelException", "negative"), 3.5],
    "metrics_one.see_kind_of_number": raised("TritonModelException"),
    "metrics_one.see_label_name": raised("TritonModelException"),
    "metrics_one.see_label_of_number": raised("TritonModelException"),
    "metrics_one.see_labels_of_list": raised("AttributeError"),
    "metrics_one.see_name_of_the_server": raised("TritonModelException"),
    "metrics_one.see_observe_of_counter": raised("TritonModelException"),
    "metrics_one.see_observe_of_gauge": raised("TritonModelException"),
    "metrics_one.see_same_family_other_kind": raised("TritonModelException"),
    "metrics_one.see_set_of_counter": raised("TritonModelException"),
    "reschedules.see_rescheduled_and_answered": Differs(None, 500, HANGS),
    "reschedules.see_unknown_flag": raised("TritonModelException", "flag"),
    "reschedules.see_zero_flag": raised("TritonModelException", "flag"),
    "reschedules_in_vain.see_error": Differs(None, 400, HANGS),
    "returning.see_list_of_none": Differs(None, 500, HANGS),
    "returning.see_none": Differs(None, 500, HANGS),
    "sender_once.see_nothing_at_all": Differs(None, 500, HANGS),
}
