"""Lets code import the Python files beside it under names that no other code can see.

Two models may each have a `utils.py`, and two instances of one model each have their own copy of
it. Their files form a package with a name of its own, and for this code `import utils` means the
`utils` of that package: the import statement calls what the `__builtins__` of the importing
module say, and `importlib.import_module` comes from an `importlib` made for this code. Nothing
else in the process is different for it, and no lock is held, so an import that hangs holds up
nobody else.

Where an installed library imports by name what code asks it to, such as the classes in a pickled
file, it finds what lies in the directories of all code, of several files with the same name the
first. And classes and functions of these files carry the package's name, so that a process that
was not forked cannot unpickle them.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import itertools
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final, final

_package_numbers: Final = itertools.count()


@final
class PrivateImports:
    """The package of one piece of code; to be closed when the code is no longer used.

    Args:
      directories: Where its files are; the first has precedence, and all have it over
        `sys.path`. They are also at the end of `sys.path`, for libraries that import by name.

    Attributes:
      package: The package's name.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self.package = f"tritrio_model_{next(_package_numbers)}"
        self._directories = [str(directory) for directory in directories]
        self._builtins = {**vars(builtins), "__import__": self._import}
        self._is_private: dict[str, bool] = {}
        self._importlib = ModuleType("importlib", importlib.__doc__)
        vars(self._importlib).update(
            import_module=self._import_module, __getattr__=partial(getattr, importlib)
        )
        module = ModuleType(self.package)
        module.__path__ = self._directories
        importlib.invalidate_caches()  # files may be younger than the last look
        sys.modules[self.package] = module
        sys.meta_path.insert(0, self)
        sys.path.extend(self._directories)

    def close(self) -> None:
        """Take the package and its modules out of the process's tables."""
        for directory in self._directories:
            with suppress(ValueError):  # the code may have changed the path
                sys.path.remove(directory)
        with suppress(ValueError):
            sys.meta_path.remove(self)
        prefix = f"{self.package}."
        for name in list(sys.modules):
            if name == self.package or name.startswith(prefix):
                del sys.modules[name]

    def run_file(self, path: Path) -> ModuleType:
        """Import one file, whatever its name, and return the module.

        Raises:
          Exception: whatever reading, compiling or executing it raises.
        """
        name = f"{self.package}.{path.stem.replace('.', '_')}"
        loader = _Loader(name, str(path), self._builtins)
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        loader.exec_module(module)
        return module

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find a module of the package, as a finder of `sys.meta_path`; see `importlib.abc`."""
        if not fullname.startswith(f"{self.package}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path, self._builtins)
        return spec

    def _import(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002 - as of builtins.__import__
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import as `builtins.__import__` does, private modules first."""
        top = name.partition(".")[0]
        if level > 0 or not self._finds(top):
            module = builtins.__import__(name, globals, locals, fromlist or (), level)
            return self._importlib if module is importlib else module
        module = builtins.__import__(f"{self.package}.{name}", globals, locals, fromlist or ())
        return module if fromlist else sys.modules[f"{self.package}.{top}"]

    def _import_module(self, name: str, package: str | None = None) -> ModuleType:
        """Import as `importlib.import_module` does, private modules first."""
        if package is not None:
            name = importlib.util.resolve_name(name, package)
        if self._finds(name.partition(".")[0]):
            name = f"{self.package}.{name}"
        return importlib.import_module(name)

    def _finds(self, top: str) -> bool:
        found = self._is_private.get(top)
        if found is None:
            spec = PathFinder.find_spec(top, self._directories)
            found = spec is not None and (spec.loader is not None or _is_no_module(top))
            self._is_private[top] = found
        return found


def _is_no_module(top: str) -> bool:
    """Return whether only directories have the name, so that one without __init__.py counts."""
    spec = PathFinder.find_spec(top)
    return top not in sys.stdlib_module_names and (spec is None or spec.loader is None)


class _Loader(SourceFileLoader):
    """Gives modules their own `__builtins__`, and leaves no .pyc files behind.

    A cached .pyc is stale if the file changes twice within a second, and a server should not
    write into a model repository.
    """

    def __init__(self, fullname: str, path: str, names: dict[str, Any]) -> None:
        super().__init__(fullname, path)
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module's source."""
        module.__dict__["__builtins__"] = self._names
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the module's source, always anew."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code
