"""Print how alike sentences are in meaning, by asking the model minilm.

    compare.py [--url HOST:PORT] SENTENCE SENTENCE...

The first sentence is compared with each of the others: 1 means the same, about 0 unrelated.
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.http as triton
from tokenizers import Tokenizer

TOKENS_MAX = 256
"""The model was trained on sentences up to this length."""


def encode(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and attention mask, both INT64 [sentences, tokens], padded to the longest."""
    tokenizer = Tokenizer.from_file(str(Path(__file__).with_name("tokenizer.json")))
    tokenizer.enable_truncation(TOKENS_MAX)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    ids = np.array([sentence.ids for sentence in encoded], np.int64)
    mask = np.array([sentence.attention_mask for sentence in encoded], np.int64)
    return ids, mask


def embed(sentences: list[str], url: str) -> np.ndarray:
    """Their embeddings, FP32 [sentences, 384], each of length 1."""
    inputs = []
    for name, values in zip(("input_ids", "attention_mask"), encode(sentences), strict=True):
        tensor = triton.InferInput(name, list(values.shape), "INT64")
        tensor.set_data_from_numpy(values)
        inputs.append(tensor)
    with triton.InferenceServerClient(url) as client:
        return client.infer("minilm", inputs).as_numpy("embedding")


def main() -> None:
    """Read the command line, ask, print."""
    parser = argparse.ArgumentParser(description="Print how alike sentences are in meaning.")
    parser.add_argument("sentences", nargs="+", metavar="SENTENCE")
    parser.add_argument("--url", default="localhost:8000", metavar="HOST:PORT")
    arguments = parser.parse_args()
    first, *others = embed(arguments.sentences, arguments.url)
    for sentence, embedding in zip(arguments.sentences[1:], others, strict=True):
        print(f"{first @ embedding:6.3f}  {sentence}")


if __name__ == "__main__":
    main()
