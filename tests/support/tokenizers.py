"""Small tokenizers of each kind, made without files."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers


def byte_level() -> Tokenizer:
    """As GPT-2's: a token for each byte, a few longer ones, one written as no bytes are."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "hello"), ("ð", "Ł")]
    pieces = [*alphabet, "日本", *(left + right for left, right in merges)]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _with_special_tokens(tokenizer)


def sentencepiece() -> Tokenizer:
    """As Llama 2's: a space in front of each text, bytes for what has no token."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "h", "i", "é", "▁h", "hi", "▁hi"]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    merges = [("▁", "h"), ("h", "i"), ("▁h", "i"), ("▁", "hi")]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _with_special_tokens(tokenizer)


def word_piece() -> Tokenizer:
    """As BERT's: parts of words begin with "##"."""
    pieces = ["[UNK]", "sing", "##ing", "##s", ".", ",", "do", "n", "'", "n't", "�"]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _with_special_tokens(tokenizer)


def word_level() -> Tokenizer:
    """A token for each word, and no decoder: words are joined by spaces."""
    pieces = ["[UNK]", "one", "two", "three"]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return _with_special_tokens(tokenizer)


def unigram() -> Tokenizer:
    """As T5's: words begin with a mark, which the decoder makes a space."""
    pieces = [("<unk>", 0.0), ("▁", -2.0), ("▁a", -1.0), ("b", -1.5), ("▁bc", -1.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _with_special_tokens(tokenizer)


def _with_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Add "<s>" and "</s>", which are special, and "<think>", which is text."""
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")]
    )
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    return tokenizer
