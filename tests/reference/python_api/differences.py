"""What the methods that look at something see differently on purpose, by row of the document."""

from __future__ import annotations

from ..cases import Differs
from .alone import ALONE
from .cases import saw
from .outcomes import HANGS, Table, failed, raised, returned

CALLS: Table = {
    "calls.see_async_in_plain_execute": (raised("RuntimeError"), returned("coroutine")),
    "calls.see_error": (
        failed("INTERNAL", "said the model"),
        failed("INVALID_ARG", "said the model"),
    ),
    "calls.see_failed_model": (
        failed("INTERNAL", "fails_initializing", "ready"),
        failed("NOT_FOUND", "fails_initializing", "ready"),
    ),
    "calls.see_many_from_one": (
        failed("INTERNAL", "called_many", "decoupled"),
        failed("UNSUPPORTED", "called_many", "decoupled"),
    ),
    "calls.see_no_inputs": (failed("INTERNAL", "called"), failed("INVALID_ARG", "called")),
    "calls.see_other_data_type": (
        failed("INTERNAL", "called", "input0"),
        failed("INVALID_ARG", "called", "input0"),
    ),
    "calls.see_other_rank": (
        failed("INTERNAL", "called", "input0"),
        failed("INVALID_ARG", "called", "input0"),
    ),
    "calls.see_other_version": (
        failed("INTERNAL", "called", "not ready", "ready"),
        failed("NOT_FOUND", "called", "not ready", "ready"),
    ),
    "calls.see_parameters_of_the_response": (raised("AttributeError"), returned("dict")),
    "calls.see_unknown_input": (
        failed("INTERNAL", "called", "other"),
        failed("INVALID_ARG", "called", "other"),
    ),
    "calls.see_unknown_model": (
        failed("INTERNAL", "there_is_none", "ready"),
        failed("NOT_FOUND", "there_is_none", "ready"),
    ),
    "calls.see_unknown_output": (
        failed("INTERNAL", "called", "other"),
        failed("INVALID_ARG", "called", "other"),
    ),
    "calls.see_version_zero": (failed("INTERNAL", "called"), failed("NOT_FOUND", "called")),
    "calls_at_once.see_error": (
        failed("INTERNAL", "said the model"),
        failed("INVALID_ARG", "said the model"),
    ),
    "calls_at_once.see_task": Differs(
        500, (200, {"seen": [["OUTPUT0", [1], ["float32", [1], [["float32", "12.0"]]]]]}), "calls"
    ),
    "calls_at_once.see_unknown_model": (
        failed("INTERNAL", "there_is_none"),
        failed("NOT_FOUND", "there_is_none"),
    ),
    "calls_at_once.see_wait": Differs((200, {"seen": 3}), 500, "calls"),
    "calls_many.see_cancel": Differs(500, (200, {"seen": returned(None)}), "calls"),
    "calls_many.see_cancel_after_the_end": Differs(500, (200, {"seen": returned(None)}), "calls"),
    "calls_many.see_error_of_an_ordinary_model": (
        [failed("INTERNAL", "said the model")],
        [failed("INVALID_ARG", "said the model")],
    ),
    "calls_many.see_read_twice": ([2, 2], [2, 0]),
    "calls_many.see_unknown_model": (
        [
            failed(
                "INTERNAL",
            )
        ],
        [
            failed(
                "NOT_FOUND",
            )
        ],
    ),
    "calls_many.see_unknown_output": (
        [
            failed(
                "INTERNAL",
            )
        ],
        [
            failed(
                "INVALID_ARG",
            )
        ],
    ),
}
NAMES: Table = {
    "logging_model.see_by_object": (raised("TypeError"), returned(None)),
    "made_requests.see_defaults": (
        ["", 0, 0, 0, "{'OUTPUT0'}", ["INPUT0"]],
        ["", 0, 0, 0, ["OUTPUT0"], ["INPUT0"]],
    ),
    "made_requests.see_fractional_parameter": (
        raised("TritonModelException", "float"),
        returned("InferenceRequest"),
    ),
    "made_requests.see_no_inputs": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_no_model": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_no_outputs": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_preferred_memory_none": (raised("TypeError"), returned("InferenceRequest")),
    "module_names.see_classes": (
        ["InferenceResponseSender", "ResponseIterator", "MemoryType", "Metric", "InferenceTrace"],
        [],
    ),
    "module_names.see_classes_at_import": (False, True),
    "module_names.see_iterator": Differs(500, (200, {"seen": []}), "python-names"),
    "module_names.see_memory": Differs(500, (200, {"seen": []}), "python-names"),
    "module_names.see_metric": Differs(500, (200, {"seen": ["MetricKind"]}), "python-names"),
    "module_names.see_metrics_at_import": (raised("AttributeError"), returned("MetricFamily")),
    "module_names.see_request": (["priority", "preferred_memory", "model_name"], ["model_name"]),
    "module_names.see_response_parameters": (["parameters"], []),
    "module_names.see_trace": Differs(500, (200, {"seen": []}), "python-names"),
    "request_fields.see_outputs_type": ("set", "list"),
    "responses.see_parameters": (raised("TypeError"), returned('{"a": 1}')),
    "tensors.see_data_type": (raised("TypeError"), returned(11)),
}
TYPES: Table = {
    "dlpack.see_columns_first_there": (
        returned(
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
        raised("TritonModelException"),
    ),
    "number_outputs.see_masked": Differs(500, 200, "python-types"),
    "number_outputs.see_other_byte_order": Differs(500, 200, "python-types"),
    "tensors.see_by_keyword": (
        raised("TypeError"),
        returned(["T", [1], ["float32", [1], [["float32", "0.0"]]]]),
    ),
    "tensors.see_complex": (
        raised("TritonModelException"),
        returned(["T", [1], ["complex64", [1], [["complex64", "0j"]]]]),
    ),
    "tensors.see_dates": (
        raised("TritonModelException"),
        returned(
            [
                "T",
                [1],
                ["datetime64[s]", [1], [["datetime64[s]", "datetime.datetime(1970, 1, 1, 0, 0)"]]],
            ]
        ),
    ),
    "tensors.see_long_double": (
        raised("TritonModelException"),
        returned(["T", [1], ["float128", [1], [["float128", "np.longdouble('0.0')"]]]]),
    ),
    "tensors.see_other_byte_order": (
        raised("TritonModelException"),
        returned(
            ["T", [3], [">f4", [3], [["float32", "0.0"], ["float32", "1.0"], ["float32", "2.0"]]]]
        ),
    ),
    "tensors.see_records": (
        raised("TritonModelException"),
        returned(["T", [1], ["[('a', '<i4')]", [1], [["[('a', '<i4')]", "(0,)"]]]]),
    ),
    "tensors.see_text": (
        raised("TritonModelException"),
        returned(["T", [2], ["<U3", [2], [["<U1", "'a'"], ["<U3", "'bcd'"]]]]),
    ),
    "text_outputs.see_byte_arrays": Differs(200, 200, "python-types"),
    "text_outputs.see_numpy_text": Differs(200, 200, "python-types"),
    "text_outputs.see_text_array": Differs(500, 200, "python-types"),
    "types.see_number_of_complex": (returned(None), raised("KeyError")),
    "types.see_number_of_text": (returned(None), returned(13)),
    "types.see_numpy_type_of_bf16": (returned(None), returned("type")),
    "types.see_numpy_type_of_no_number": (returned(None), raised("KeyError")),
    "types.see_numpy_type_of_zero": (returned(None), raised("KeyError")),
    "types.see_wire_form_of_floats": (returned(None), raised("TritonModelException")),
    "types.see_wire_form_of_no_elements": (raised("AttributeError"), returned("b''")),
    "types.see_wire_form_of_read_cut_off": (raised("error"), raised("ValueError")),
    "types.see_wire_form_of_read_cut_off_length": (raised("error"), raised("ValueError")),
    "types.see_wire_form_of_text_array": (
        returned(None),
        returned("b'\\x03\\x00\\x00\\x00abc\\x01\\x00\\x00\\x00d'"),
    ),
}
FAULTS: Table = {
    "config_lookups.see_a_text_for_a_config": (raised("TypeError"), raised("AttributeError")),
    "config_lookups.see_decoupled_in_an_empty_policy": (raised("KeyError"), returned(False)),
    "decoupled.stream_misuse": Differs(
        (
            "OK",
            [
                {
                    "seen": [
                        [
                            {"raises": "TritonModelException", "says": ["flag"]},
                            {"raises": "TritonModelException", "says": ["response"]},
                            {"raises": "TypeError", "says": []},
                            False,
                            False,
                        ]
                    ],
                    "parameters": {"triton_final_response": {"bool_param": True}},
                }
            ],
        ),
        (
            "OK",
            [
                {
                    "seen": [
                        [
                            {"raises": "TritonModelException", "says": ["flag"]},
                            {"raises": "TritonModelException", "says": ["response"]},
                            {"raises": "TritonModelException", "says": []},
                            False,
                            False,
                        ]
                    ],
                    "parameters": {"triton_final_response": {"bool_param": True}},
                }
            ],
        ),
        "python-faults",
    ),
    "explicit.see_ready_version_of_number": (raised("TypeError"), raised("AttributeError")),
    "logging_model.see_level_of_number": (raised("TypeError"), returned(None)),
    "logging_model.see_none": (raised("TypeError"), returned(None)),
    "logging_model.see_number": (raised("TypeError"), returned(None)),
    "made_requests.see_correlation_id_none": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_fractional_correlation_id": (
        raised("TritonModelException"),
        returned("InferenceRequest"),
    ),
    "made_requests.see_fractional_timeout": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_id_none": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_id_of_number": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_inputs_of_arrays": (raised("TypeError"), raised("TritonModelException")),
    "made_requests.see_negative_correlation_id": (
        raised("RuntimeError"),
        returned("InferenceRequest"),
    ),
    "made_requests.see_negative_timeout": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_outputs_as_text": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_outputs_of_numbers": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_parameters_as_text": (
        raised("TritonModelException"),
        raised("AttributeError"),
    ),
    "made_requests.see_preferred_memory_of_number": (raised("TypeError"), raised("ValueError")),
    "made_requests.see_timeout_text": (raised("TypeError"), returned("InferenceRequest")),
    "made_requests.see_too_large_correlation_id": (
        raised("RuntimeError"),
        returned("InferenceRequest"),
    ),
    "made_requests.see_too_large_parameter": (
        returned("InferenceRequest"),
        raised("TritonModelException"),
    ),
    "made_requests.see_unknown_flags": (returned(8), returned(0)),
    "metrics_one.see_metric_without_family": (raised("TritonModelException"), returned(4.0)),
    "responses.see_code_of_number": (raised("TypeError"), raised("TritonModelException")),
    "responses.see_error_of_text": (raised("TypeError"), raised("TritonModelException")),
    "responses.see_message_of_exception": (raised("TypeError"), returned("TritonError")),
    "responses.see_message_of_number": (raised("TypeError"), returned("TritonError")),
    "responses.see_outputs_of_arrays": (raised("TypeError"), raised("TritonModelException")),
    "returning.see_output_twice": Differs((200, {"seen": "good"}), 500, "python-faults"),
    "sender_once.see_last_of_flags_text": (raised("TypeError"), raised("TritonModelException")),
    "sender_once.see_last_of_text": (raised("TypeError"), raised("TritonModelException")),
    "tensors.see_list": (raised("TypeError"), raised("TritonModelException")),
    "tensors.see_name_that_is_no_text": (raised("TypeError"), raised("TritonModelException")),
    "tensors.see_name_that_is_none": (raised("TypeError"), raised("TritonModelException")),
    "tensors.see_none": (raised("TypeError"), raised("TritonModelException")),
    "tensors.see_numpy_scalar": (raised("TypeError"), raised("TritonModelException")),
    "tensors.see_scalar": (raised("TypeError"), raised("TritonModelException")),
}


def _differences() -> dict[tuple[str, str], Differs]:
    found: dict[tuple[str, str], Differs] = {}
    rows = {"calls": CALLS, "python-names": NAMES, "python-types": TYPES, "python-faults": FAULTS}
    for why, table in rows.items():
        for name, sides in table.items():
            model, _, method = name.partition(".")
            one = sides if isinstance(sides, Differs) else saw(sides[0], sides[1], why)
            found[model, method] = one
    for name, seen in ALONE.items():
        model, _, method = name.partition(".")
        one = seen if isinstance(seen, Differs) else Differs(None, (200, {"seen": seen}), HANGS)
        found[model, method] = one
    return found


DIFFERENCES = _differences()
"""(Model, method) -> how the answers differ; all others are equal."""
