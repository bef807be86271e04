"""Reads `config.pbtxt`: the protobuf text format of `ModelConfig`.

Which fields exist comes from the generated classes. The recursion is as deep as the messages
nest in the `.proto` file, since an unknown field ends the reading: no input can make it deeper.
Source: the protobuf text format specification. Unlike the reference readers, a singular field
given twice is refused even when the first value was the default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn

import betterproto2

from ._message_schema import (
    ENUM,
    INTEGER_RANGES,
    MAP,
    MESSAGE,
    FieldSchema,
    closest,
    closest_enum_name,
    enum_numbers,
    enum_type,
    fields_of,
    message_type,
    to_float32,
)
from ._text_tokens import END, NAME, NUMBER, STRING, ConfigSyntaxError, Token, TokenStream
from .pb.inference import ModelConfig

__all__ = ["CONFIG_MAX_BYTES", "ConfigSyntaxError", "parse_model_config"]

CONFIG_MAX_BYTES: Final = 1 << 20
"""Largest configuration text that is read: thousands of tensors fit, and it takes seconds."""

_INTEGER: Final = re.compile(r"(-?)(?:0[xX]([0-9A-Fa-f]+)|(0[0-7]*)|([1-9][0-9]*))")
_FLOAT: Final = re.compile(
    r"(-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fF]?"
)
_SPECIAL_FLOATS: Final = frozenset({"inf", "infinity", "nan", "-inf", "-infinity", "-nan"})
_BOOLEANS: Final = {
    "true": True,
    "True": True,
    "t": True,
    "1": True,
    "false": False,
    "False": False,
    "f": False,
    "0": False,
}
_CLOSING: Final = {"{": "}", "<": ">"}
_INTEGER_MAX_CHARS: Final = 64
"""No integer in range is longer without zeros in front; a longer one is not even converted."""


def parse_model_config(text: bytes | str, *, file: str) -> ModelConfig:
    """Return the configuration that a text-format file spells out.

    Args:
      text: The content of the file; bytes must be UTF-8. Empty is a configuration of defaults.
      file: The name errors start with.

    Raises:
      ConfigSyntaxError: the text is not a `ModelConfig`; says where, what was expected and what
        came.
    """
    data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    if len(data) > CONFIG_MAX_BYTES:
        raise ConfigSyntaxError(
            f"{file}:1:1: expected at most {CONFIG_MAX_BYTES} bytes, got {len(data)}"
        )
    tokens = TokenStream(_decode(data, file), file=file)
    return ModelConfig(**_Parser(tokens).fields(fields_of(ModelConfig), ModelConfig.__name__))


def _decode(data: bytes, file: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        lines = data[: error.start].decode().split("\n")
        raise ConfigSyntaxError(
            f"{file}:{len(lines)}:{len(lines[-1]) + 1}: expected UTF-8 text, "
            f"got the byte 0x{data[error.start]:02x}"
        ) from None


class _Parser:
    def __init__(self, tokens: TokenStream) -> None:
        self._tokens = tokens
        self._readers: Mapping[str, Callable[[FieldSchema], Any]] = {
            betterproto2.TYPE_STRING: self._string,
            betterproto2.TYPE_BOOL: self._boolean,
            betterproto2.TYPE_FLOAT: self._float32,
            betterproto2.TYPE_DOUBLE: self._float,
            betterproto2.TYPE_INT32: self._integer,
            betterproto2.TYPE_INT64: self._integer,
            betterproto2.TYPE_UINT32: self._integer,
            betterproto2.TYPE_UINT64: self._integer,
            ENUM: self._enum,
            MAP: self._entry,
            MESSAGE: self._message,
        }

    def fields(
        self, schema: Mapping[str, FieldSchema], owner: str, *, opened: Token | None = None
    ) -> dict[str, Any]:
        """Return the values by attribute, up to the bracket that closes `opened`.

        Args:
          schema: The fields there are.
          owner: How errors name what the fields belong to.
          opened: The bracket before the fields; None at the top, which ends with the file.
        """
        tokens = self._tokens
        closing = _CLOSING[opened.text] if opened else ""
        values: dict[str, Any] = {}
        given: dict[str, str] = {}  # a singular field or a oneof -> the field that took it
        while not (closing and tokens.accept(closing)):
            token = tokens.current
            if token.kind == END and opened is None:
                break
            if token.kind != NAME:
                self._expected_name(owner, opened)
            tokens.next()
            field = schema.get(token.text)
            if field is None:
                tokens.fail(
                    token.offset,
                    f"expected a field of {owner}, got {token.described()}"
                    f"{closest(token.text, schema)}",
                )
            if not field.repeated and field.kind != MAP:
                self._claim(field, given, token)
            self._read(field, values)
            tokens.accept(",;")
        return values

    def _expected_name(self, owner: str, opened: Token | None) -> NoReturn:
        if opened is None:
            self._tokens.expected("a field name", hint="; no bracket is open here")
        self._tokens.expected(
            f"a field name or the '{_CLOSING[opened.text]}' that closes {owner}, "
            f"opened at {self._tokens.place(opened.offset)}"
        )

    def _claim(self, field: FieldSchema, given: dict[str, str], token: Token) -> None:
        slot = field.oneof or field.name
        if slot not in given:
            given[slot] = field.name
        elif given[slot] == field.name:
            self._tokens.fail(token.offset, f"expected '{field.name}' only once, got it again")
        else:
            self._tokens.fail(
                token.offset,
                f"expected one field of {slot}, got '{field.name}' after '{given[slot]}'",
            )

    def _read(self, field: FieldSchema, values: dict[str, Any]) -> None:
        tokens = self._tokens
        if tokens.accept(":") is None and field.kind not in {MESSAGE, MAP}:
            tokens.expected(f"':' after '{field.name}'")
        many = field.repeated or field.kind == MAP
        if tokens.current.text == "[" and not many:
            tokens.expected(f"one value, since '{field.name}' is not repeated")
        read = self._readers[field.kind]
        if field.kind == MAP:
            values.setdefault(field.attribute, {}).update(self._items(field, read))
        elif field.repeated:
            values.setdefault(field.attribute, []).extend(self._items(field, read))
        else:
            values[field.attribute] = read(field)

    def _items(self, field: FieldSchema, read: Callable[[FieldSchema], Any]) -> Iterator[Any]:
        tokens = self._tokens
        if not tokens.accept("["):
            yield read(field)
            return
        if tokens.accept("]"):
            return
        while True:
            if tokens.current.text == "]":
                tokens.expected("a value", hint="; a list has no comma after its last value")
            yield read(field)
            if tokens.accept("]"):
                return
            if not tokens.accept(","):
                tokens.expected(f"',' or ']' in the list of '{field.name}'")

    def _message(self, field: FieldSchema) -> betterproto2.Message:
        cls = message_type(field)
        return cls(**self._braced(fields_of(cls), field))

    def _entry(self, field: FieldSchema) -> tuple[Any, Any]:
        key, value = field.entry
        values = self._braced({"key": key, "value": value}, field)
        return values.get("key", key.type()), values.get("value", value.type())

    def _braced(self, schema: Mapping[str, FieldSchema], field: FieldSchema) -> dict[str, Any]:
        opened = self._tokens.accept("{<")
        if opened is None:
            self._tokens.expected(f"'{{' to open '{field.name}'")
        return self.fields(schema, f"'{field.name}'", opened=opened)

    def _string(self, field: FieldSchema) -> str:
        tokens = self._tokens
        first = tokens.current
        if first.kind != STRING:
            hint = "; put text in quotes" if first.kind in {NAME, NUMBER} else ""
            tokens.expected(f"a string for '{field.name}'", hint=hint)
        parts = []
        while tokens.current.kind == STRING:
            parts.append(tokens.string(tokens.next()))
        try:
            return b"".join(parts).decode()
        except UnicodeDecodeError:
            tokens.fail(
                first.offset,
                f"expected UTF-8 text for '{field.name}', got escapes that make other bytes",
            )

    def _integer(self, field: FieldSchema) -> int:
        tokens = self._tokens
        match = _INTEGER.fullmatch(tokens.current.text)
        if match is None or len(match.group()) > _INTEGER_MAX_CHARS:
            hint = "; numbers are not quoted" if tokens.current.kind == STRING else ""
            tokens.expected(f"an integer for '{field.name}'", hint=hint)
        sign, hexadecimal, octal, decimal = match.groups()
        if hexadecimal is not None:
            value = int(hexadecimal, 16)
        else:
            value = int(octal, 8) if octal is not None else int(decimal)
        value = -value if sign else value
        low, high = INTEGER_RANGES[field.kind]
        if not low <= value <= high:
            tokens.expected(f"an integer from {low} to {high} for '{field.name}'")
        tokens.next()
        return value

    def _float(self, field: FieldSchema) -> float:
        tokens = self._tokens
        text = tokens.current.text
        match = _FLOAT.fullmatch(text)
        special = tokens.current.kind != STRING and text.lower() in _SPECIAL_FLOATS
        if match is None and not special:
            tokens.expected(f"a number for '{field.name}'")
        tokens.next()
        return float(match[1] if match else text)

    def _float32(self, field: FieldSchema) -> float:
        return to_float32(self._float(field))

    def _boolean(self, field: FieldSchema) -> bool:
        value = _BOOLEANS.get(self._tokens.current.text)
        if value is None:
            self._tokens.expected(f"true or false for '{field.name}'")
        self._tokens.next()
        return value

    def _enum(self, field: FieldSchema) -> betterproto2.Enum:
        cls = enum_type(field)
        token = self._tokens.current
        if token.kind == NUMBER:
            return cls(self._integer(field))
        numbers = enum_numbers(cls)
        if token.kind != NAME:
            hint = "; enum names are not quoted" if token.kind == STRING else ""
            self._tokens.expected(f"an enum name for '{field.name}'", hint=hint)
        if token.text not in numbers:
            self._tokens.expected(
                f"one of the names of {cls.__name__} for '{field.name}'",
                hint=closest_enum_name(token.text, numbers),
            )
        self._tokens.next()
        return cls(numbers[token.text])
