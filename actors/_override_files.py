"""The directory of a model whose files came with a load request.

It lies among the temporary files until nobody holds it any more. Writing and removing block, so
they run on a worker thread.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import final

from ..protocol.errors import ErrorCode, RequestError


@final
class OverrideFiles:
    """Files that are a whole model; made with one holder, who may be joined by others.

    Args:
      name: The model's name, which is that of the directory.
      files: Path below that directory -> content; checked.
    """

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        self._name = name
        self._files = files
        self._holders = 1
        self._place: Path | None = None
        self._writing = False
        self._lock = threading.Lock()  # a writer may be abandoned by whoever waits for it

    def __repr__(self) -> str:
        return f"<OverrideFiles of {self._name!r}, held by {self._holders}>"

    def write(self) -> Path:
        """Return the model's directory, with everything in it.

        Raises:
          RequestError: it cannot be written.
        """
        with self._lock:
            self._writing = True
        try:
            return self._write()
        except OSError as error:
            raise RequestError(
                ErrorCode.INTERNAL,
                f"the files of model '{self._name}' cannot be written: {error.strerror}",
            ) from None
        finally:
            with self._lock:
                self._writing = False
                left = self._holders == 0
            if left:
                self._remove()

    def _write(self) -> Path:
        self._place = Path(tempfile.mkdtemp(prefix="tritrio-model-"))
        directory = self._place / self._name
        directory.mkdir()
        for path, content in self._files.items():
            file = directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        self._files = {}  # they may be large
        return directory

    def hold(self) -> None:
        """Keep the directory until one more `release`."""
        with self._lock:
            assert self._holders, "nobody holds what has been removed"
            self._holders += 1

    def release(self) -> None:
        """Let go; the last one removes the directory."""
        with self._lock:
            self._holders -= 1
            last = self._holders == 0 and not self._writing
        if last:
            self._remove()

    def _remove(self) -> None:
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)
