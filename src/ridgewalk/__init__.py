"""Ridgewalk: stochastic-gradient MCMC on posteriors that plain Langevin dynamics cannot mix on.

Public names and submodules are imported on first use (PEP 562), so that `import ridgewalk` loads neither JAX nor the
optional dependencies. `__init__.pyi` lists the names and the modules that define them.
"""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__version__ = "0.2.0"


def _defining_modules() -> dict[str, str]:
    """The module that defines each public name, from the import statements of `__init__.pyi`."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (statement for statement in stub.body if isinstance(statement, ast.ImportFrom))
    return {alias.name: str(statement.module) for statement in imports for alias in statement.names}


_MODULES = _defining_modules()

__all__ = sorted(_MODULES)  # noqa: PLE0605  (a list, of the names in __init__.pyi)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
