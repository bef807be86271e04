"""What is read of a model's directory before it is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritrio.actors._model_preparation import PreparationSettings, PreparedVersion, prepare_model
from tritrio.actors._repository_scan import scan_repository
from tritrio.protocol.errors import ErrorCode, RequestError

STATEFUL = """
backend: "identity"
max_batch_size: 2
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  state [ {
    input_name: "IN_STATE" output_name: "OUT_STATE" data_type: TYPE_INT32 dims: [ 2 ]
    initial_state { name: "start" data_type: TYPE_INT32 dims: [ 2 ] data_file: "%s" }
  } ]
}
"""


def prepared(tmp_path: Path, config: str) -> PreparedVersion:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text(config)
    (files,) = scan_repository(tmp_path)
    (version,) = prepare_model(files, PreparationSettings()).versions
    return version


def test_the_files_of_initial_states_are_read(tmp_path: Path) -> None:
    (tmp_path / "m" / "initial_state").mkdir(parents=True)
    (tmp_path / "m" / "initial_state" / "start").write_bytes(bytes(range(8)))
    version = prepared(tmp_path, STATEFUL % "start")
    assert version.error is None
    assert version.initial_files == {"IN_STATE": bytes(range(8))}


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    error = prepared(tmp_path, STATEFUL % "start").error
    assert error is not None
    assert error.message.startswith("model 'm': initial state of 'IN_STATE' cannot be read: ")


def test_a_name_that_no_file_can_have_is_an_error_of_its_version(tmp_path: Path) -> None:
    error = prepared(
        tmp_path,
        """
        backend: "identity"
        input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ {
          name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] label_filename: "a\\000b"
        } ]
        """,
    ).error
    assert error is not None
    assert error.message == (
        "model 'm': label_filename 'a\0b' of output 'OUTPUT0' cannot be read: embedded null byte"
    )


def test_a_link_that_leads_out_of_the_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(8))
    (tmp_path / "m" / "initial_state").mkdir(parents=True)
    (tmp_path / "m" / "initial_state" / "start").symlink_to(tmp_path / "secret")
    error = prepared(tmp_path, STATEFUL % "start").error
    assert error is not None
    assert (
        error.message == "model 'm': initial state of 'IN_STATE' must lie in the model's directory"
    )


@pytest.mark.parametrize("field", ["platform", "default_model_filename"])
def test_what_tells_no_backend_is_named(tmp_path: Path, field: str) -> None:
    with pytest.raises(RequestError) as raised:
        prepared(tmp_path, f'{field}: "odd"')
    assert raised.value.code is ErrorCode.INVALID_ARG
    assert raised.value.message == (
        f"model 'm': no backend could be determined from its {field} 'odd'; expected a backend too"
    )


def test_an_ensemble_has_no_backend_and_nothing_is_added_to_it(tmp_path: Path) -> None:
    version = prepared(
        tmp_path,
        """
        platform: "ensemble"
        input [ { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } ]
        output [ { name: "Y" data_type: TYPE_INT32 dims: [ 1 ] } ]
        ensemble_scheduling { step {
          model_name: "a" model_version: -1
          input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "Y" }
        } }""",
    )
    assert version.backend is None
    assert version.config is not None
    assert version.config.instance_group == []
    assert version.config.optimization is None
    assert version.config.backend == ""
    assert version.config.max_batch_size == 0
