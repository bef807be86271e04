"""A tiny real model that generates: it tells how an English word is spoken.

The weights are those of g2p-en, two GRU networks. One vocabulary holds letters and sounds: a letter
moves a row's state by the encoder, a sound by the decoder, so that a row is nothing but a vector.
The tokenizer makes of a word its letters and what ends them and begins the sounds.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

from tests.support.weights import fetch_models, wheel_member

LETTERS = ("<pad>", "<unk>", ">", *"abcdefghijklmnopqrstuvwxyz")
_PHONEMES = (
    "AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH "
    "EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG "
    "OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH"
)
SOUNDS = ("<none>", "<any>", "<s>", "</s>", *_PHONEMES.split())
END = len(LETTERS) + SOUNDS.index("</s>")
VOCABULARY = (*LETTERS, *SOUNDS)
WORDS = {
    "activationist": "AE2 K T IH0 V EY1 SH AH0 N IH0 S T",
    "triton": "T R AY1 T AH0 N",
    "inference": "IH1 N F ER0 AH0 N S",
}
"""Word -> what the model says of it."""

MODEL = """
import numpy as np

LETTERS, SOUNDS, WIDTH = 29, 74, 256


class TritonGenerationModel:
    vocabulary_size = LETTERS + SOUNDS
    context_length = 64

    def initialize(self, args):
        path = args["model_repository"] + "/" + args["model_version"] + "/weights.npz"
        self._weights = dict(np.load(path))
        self._rows = {}

    def prefill(self, row, tokens, past):
        if past == 0:
            self._rows[row] = np.zeros(WIDTH, np.float32)
        for token in tokens:
            self._read(row, token)
        return self._logits(row)

    def step(self, rows, tokens, past):
        for row, token in zip(rows, tokens):
            self._read(int(row), token)
        return np.stack([self._logits(int(row)) for row in rows])

    def _read(self, row, token):
        network, number = ("enc", token) if token < LETTERS else ("dec", token - LETTERS)
        w = self._weights
        x, h = w[network + "_emb"][number], self._rows[row]
        given = w[network + "_w_ih"] @ x + w[network + "_b_ih"]
        kept = w[network + "_w_hh"] @ h + w[network + "_b_hh"]
        reset, update = np.split(1 / (1 + np.exp(-given[:512] - kept[:512])), 2)
        new = np.tanh(given[512:] + reset * kept[512:])
        self._rows[row] = ((1 - update) * new + update * h).astype(np.float32)

    def _logits(self, row):
        sounds = self._weights["fc_w"] @ self._rows[row] + self._weights["fc_b"]
        return np.concatenate([np.full(LETTERS, -np.inf, np.float32), sounds])
"""


def write_g2p(repository: Path, *, name: str = "g2p", **settings: object) -> Path:
    """Write the model into a repository; its directory. Skips where the weights cannot be had.

    Args:
      repository: Where the model goes.
      name: What it is called.
      settings: More for its model.json.
    """
    weights = wheel_member("G2P", fetch_models()["G2P_FILE"])
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text('backend: "llm"\n')
    (version / "weights.npz").write_bytes(weights)
    (version / "model.py").write_text(MODEL)
    given = {"model": "model.py", "eos_token_id": END, **settings}
    (version / "model.json").write_text(json.dumps(given))
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[a-z]"), "isolated")
    around = [(token, ids[token]) for token in (">", "<s>")]
    tokenizer.post_processor = processors.TemplateProcessing("$A > <s>", special_tokens=around)
    tokenizer.add_special_tokens([">", "<s>", "</s>"])
    tokenizer.save(str(version / "tokenizer.json"))
    return version.parent
