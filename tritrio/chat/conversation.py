"""What was said so far, as a request has to say it."""

from __future__ import annotations

from typing import Final, final


@final
class Conversation:
    """The messages of one chat.

    A turn counts as far as it came: what there is of an answer that was stopped is remembered as
    the answer, so that a question can refer to it; without any the question is forgotten too.

    Args:
      system: What the model is told before anything else; "" for nothing.

    Attributes:
      messages: As `messages` of a chat completion, the oldest first.
    """

    def __init__(self, system: str = "") -> None:
        self._beginning: Final = [{"role": "system", "content": system}] if system else []
        self.messages: list[dict[str, str]] = [*self._beginning]

    def ask(self, question: str) -> None:
        """Begin a turn."""
        self.messages.append({"role": "user", "content": question})

    def answered(self, answer: str) -> None:
        """End a turn with what came as its answer, "" if nothing did."""
        if answer:
            self.messages.append({"role": "assistant", "content": answer})
        else:
            self.messages.pop()

    def reset(self) -> None:
        """Forget all turns."""
        self.messages = [*self._beginning]
