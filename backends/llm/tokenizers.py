"""Finds the tokenizer of a model and what belongs to it: chat template, end tokens.

Source: the files that Hugging Face's tokenizers are published with, and GGUF files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from ...protocol.errors import invalid_argument
from ...protocol.wording import names_text, quoted, shown
from .chat_template import ChatTemplate
from .detokenizers import detokenizer_of, vocabulary_size_of
from .gguf_vocabulary import Vocabulary, read_gguf_vocabulary
from .text import Text, TextStream
from .text_files import GENERATION_FILE, check_regular, read_json, read_text

TOKENIZER_FILE: Final = "tokenizer.json"
CONFIG_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
_SPECIAL_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token")
"""What chat templates may name, and `CONFIG_FILE` tells."""
_DEFAULT: Final = "default"
_WITH_TOOLS: Final = "tool_use"
"""Which of several chat templates is for requests with tools."""


def load_text(
    directory: Path,
    *,
    tokenizer: str = "",
    chat_template: str = "",
    end_tokens: Collection[int] | None = None,
) -> Text:
    """Load a model's tokenizer.

    Args:
      directory: Where the files are; no name leads out of it.
      tokenizer: A file in `tokenizer.json`'s form, a GGUF file, or a directory with one of them; ""
        for what there is.
      chat_template: A file; "" for `chat_template.jinja`, else the one in `tokenizer_config.json`,
        else the GGUF file's, else none.
      end_tokens: Token ids; None for those of `generation_config.json`, else of the GGUF file, else
        the `eos_token` of `tokenizer_config.json`.

    Raises:
      RequestError: INVALID_ARG; names the file that is missing or wrong, and says why.
    """
    place = _inside(directory, tokenizer) if tokenizer else directory
    place = _find_tokenizer(place) if place.is_dir() else place
    vocabulary = _read_vocabulary(place)
    config = read_json(place.parent / CONFIG_FILE)
    special_tokens = vocabulary.special_tokens | _special_tokens(config)
    if chat_template:
        file = _inside(directory, chat_template)
        templates = {_DEFAULT: (file.name, read_text(file))}
    elif (file := place.parent / TEMPLATE_FILE).exists():
        templates = {_DEFAULT: (file.name, read_text(file))}
    elif found := _named_templates(config.get("chat_template")):
        templates = {name: (CONFIG_FILE, source) for name, source in found.items()}
    elif vocabulary.chat_template:
        templates = {_DEFAULT: (place.name, vocabulary.chat_template)}
    else:
        templates = {}
    if end_tokens is None:
        end_tokens = _end_tokens(place.parent, vocabulary, special_tokens)
    size = vocabulary_size_of(vocabulary.tokenizer)
    for token in end_tokens:
        if not 0 <= token < size:
            raise invalid_argument(f"expected end tokens from 0 to {size - 1}, got {token}")
    return TokenizerText(
        vocabulary.tokenizer,
        end_tokens=frozenset(end_tokens),
        bos_token=special_tokens.get("bos_token", ""),
        templates={
            name: ChatTemplate(source, name=file_name, special_tokens=special_tokens)
            for name, (file_name, source) in templates.items()
        },
    )


class TokenizerText:
    """`Text` with a tokenizer of the `tokenizers` library.

    Its tokenizers may be used by many threads at a time, as long as nobody changes their settings:
    nobody does after this object is made, and all else here is constant.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        end_tokens: frozenset[int] = frozenset(),
        bos_token: str = "",
        templates: Mapping[str, ChatTemplate] | None = None,
    ) -> None:
        """Take a tokenizer over.

        Args:
          tokenizer: Is changed: it neither cuts texts nor fills them up from now on.
          end_tokens: Tokens with which the model ends a text.
          bos_token: What a text begins with, as text; "" for nothing.
          templates: Name -> chat template; "default" and perhaps "tool_use".
        """
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._detokenizer = detokenizer_of(tokenizer)
        self._templates = dict(templates or {})
        self._bos_token = bos_token if tokenizer.encode("").tokens[:1] == [bos_token] else ""
        self.vocabulary_size = vocabulary_size_of(tokenizer)
        self.end_tokens = end_tokens
        self.can_chat = bool(self._templates)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; special tokens in it are recognised.

        What the tokenizer puts around each text is there too. Lone surrogates become "?".

        Raises:
          RequestError: INVALID_ARG; the vocabulary has no way to write it.
        """
        clean = text.encode("utf-8", "replace").decode()
        try:
            # The call for one text would hold up all other threads of Python meanwhile.
            tokens: list[int] = self._tokenizer.encode_batch_fast([clean])[0].ids
        except Exception as error:  # the library has no class of its own
            raise invalid_argument(
                f"the model's tokenizer cannot write the text: {error}"
            ) from error
        return tokens

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of tokens; broken characters are replaced."""
        return self._detokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def stream(self, *, skip_special_tokens: bool = True) -> TextStream:
        """Return what makes text of one sequence, token by token."""
        return self._detokenizer.stream(skip_special_tokens=skip_special_tokens)

    def token_text(self, token: int) -> str:
        """Return one token by itself as text; broken characters are replaced."""
        return self.token_bytes(token).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """Return one token by itself as UTF-8 bytes, whole or not."""
        return self._detokenizer.token_bytes(token)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a conversation, as `Text.render_chat`.

        Special tokens that a message spells out count as such, as in any other text. The first
        token of the model is left out if `encode` puts it there itself.
        """
        if not self._templates:
            raise invalid_argument("the model has no chat template, so it takes no messages")
        template = self._templates[_DEFAULT]
        if tools:
            template = self._templates.get(_WITH_TOOLS, template)
        prompt = template.render(
            messages,
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
            variables=variables or {},
        )
        return prompt.removeprefix(self._bos_token)


def _inside(directory: Path, name: str) -> Path:
    """Return where a file of that name is; symbolic links may lead out, names may not."""
    normal = os.path.normpath(name)
    if "\0" in name or os.path.isabs(normal) or normal.split(os.sep, 1)[0] == os.pardir:
        raise invalid_argument(
            f"expected a file inside the model's directory, got {quoted(name)}, which leads out"
        )
    path = directory / normal
    if not os.path.exists(path):  # Path.exists raises on names too long
        raise invalid_argument(
            f"expected {quoted(name)} in the model's directory, got no such file"
        )
    return path


def _find_tokenizer(directory: Path) -> Path:
    path = directory / TOKENIZER_FILE
    if path.exists():
        return path
    found = sorted(directory.glob("*.gguf"))
    if len(found) != 1:
        raise invalid_argument(
            f"expected {TOKENIZER_FILE} or one GGUF file in {quoted(directory.name)}, got "
            + (names_text(path.name for path in found) if found else "neither")
        )
    return found[0]


def _read_vocabulary(path: Path) -> Vocabulary:
    check_regular(path)
    if path.suffix == ".gguf":
        return read_gguf_vocabulary(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no class of its own
        raise invalid_argument(f"{path.name}: cannot be read as a tokenizer: {error}") from error
    return Vocabulary(tokenizer)


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_TOKENS:
        value = config.get(name)
        if isinstance(value, dict):  # an AddedToken, written out
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
        elif value is not None:
            raise invalid_argument(
                f"{CONFIG_FILE}: expected a token as {name}, got {shown(config[name])}"
            )
    return found


def _named_templates(value: Any) -> dict[str, str]:
    """Return the chat templates of a tokenizer's configuration by name."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {_DEFAULT: value}
    items = value if isinstance(value, list) else [value]
    try:
        named = {item["name"]: item["template"] for item in items}
    except (TypeError, KeyError):
        named = {}
    if not all(isinstance(template, str) for template in named.values()) or _DEFAULT not in named:
        raise invalid_argument(
            f"{CONFIG_FILE}: expected a string or a list of templates with names, 'default' among "
            f"them, as chat_template, got {shown(value)}"
        )
    return named


def _end_tokens(
    directory: Path, vocabulary: Vocabulary, special_tokens: Mapping[str, str]
) -> Collection[int]:
    value = read_json(directory / GENERATION_FILE).get("eos_token_id")
    if value is not None:
        tokens = value if isinstance(value, list) else [value]
        if all(type(token) is int for token in tokens):
            return tokens
        raise invalid_argument(
            f"{GENERATION_FILE}: expected a token id or a list of them as eos_token_id, got "
            f"{shown(value)}"
        )
    if vocabulary.end_tokens or "eos_token" not in special_tokens:
        return vocabulary.end_tokens
    token = vocabulary.tokenizer.token_to_id(special_tokens["eos_token"])
    if token is None:
        raise invalid_argument(
            f"{CONFIG_FILE}: expected a token of the vocabulary as eos_token, got "
            f"{quoted(special_tokens['eos_token'])}"
        )
    return (token,)
