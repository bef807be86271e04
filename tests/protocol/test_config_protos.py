"""The committed message classes are those of the `.proto` files, and agree with the clients'."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from tritrio.protocol._message_schema import enum_numbers, enum_type, fields_of, message_type
from tritrio.protocol.pb import inference as pb

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "protocol" / "pb"

KINDS = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_MESSAGE: "message",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


@pytest.mark.slow
def test_the_committed_classes_are_up_to_date(tmp_path: Path) -> None:
    for module in ("betterproto2_compiler", "grpc_tools"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    script = ROOT / "scripts" / "gen_protos"
    subprocess.run([sys.executable, script, "--out", tmp_path], check=True, cwd=ROOT, timeout=60)
    fresh = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*.py")}
    kept = {path.relative_to(PACKAGE): path.read_text() for path in PACKAGE.rglob("*.py")}
    del kept[Path("__init__.py")]
    assert kept == fresh


def test_the_classes_import_without_compiler_and_google_protobuf() -> None:
    code = (
        "import sys, tritrio.protocol.pb.inference, tritrio.protocol.pb.grpc.health.v1;"
        "print([m for m in sys.modules if m.startswith(('google.protobuf', 'grpc_tools',"
        " 'betterproto2_compiler', 'grpclib'))])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout.strip() == "[]"


def described(descriptor: Descriptor, seen: dict[str, Any]) -> dict[str, Any]:
    """What google knows of a message and of all below it, by flattened name."""
    name = descriptor.full_name.removeprefix("inference.").replace(".", "")
    if name in seen:
        return seen
    fields: dict[str, Any] = {}
    seen[name] = fields
    for field in descriptor.fields:
        value = field
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            value = field.message_type.fields_by_name["value"]
        if value.message_type is not None:
            described(value.message_type, seen)
        fields[field.name] = (
            field.number,
            "map" if is_map else KINDS[field.type],
            field.is_repeated and not is_map,
            field.containing_oneof.name if field.containing_oneof else None,
            {v.name: v.number for v in value.enum_type.values} if value.enum_type else None,
        )
    return seen


def ours(cls: Any) -> dict[str, Any]:
    metas = {name.rstrip("_"): m for name, m in cls._betterproto.meta_by_field_name.items()}
    return {
        name: (
            metas[name].number,
            field.kind,
            field.repeated,
            field.oneof,
            enum_numbers(enum_type(field)) if field.kind == "enum" else None,
        )
        for name, field in fields_of(cls).items()
    }


MESSAGES: dict[str, Any] = {}
described(model_config_pb2.ModelConfig.DESCRIPTOR, MESSAGES)
for _descriptor in service_pb2.DESCRIPTOR.message_types_by_name.values():
    described(_descriptor, MESSAGES)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_a_message_has_every_field_that_clients_know(name: str) -> None:
    known = MESSAGES[name]
    mine = ours(getattr(pb, name))
    assert {field: mine.get(field) for field in known} == known


def test_nested_messages_are_found_through_the_schema() -> None:
    assert message_type(fields_of(pb.ModelConfig)["input"]) is pb.ModelInput
    key, value = fields_of(pb.ModelConfig)["parameters"].entry
    assert (key.kind, value.type) == ("string", pb.ModelParameter)
