"""Optional imports: one context manager, whose error names the extra to install.

An import of a module that is not a core dependency stands inside it, in a function or at the top of a module that is
itself optional::

    with requires_extra("store"):
        import zarr

Type checkers and editors see a plain import. `tests/test_optional.py` checks that every optional import of the package
is written this way, and that the extra it names lists the module.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def requires_extra(extra: str) -> Iterator[None]:
    """Turn the ModuleNotFoundError of an import into an ImportError with the command that installs it.

    An error within an installed module (a broken installation, a missing shared library) is not changed.

    Parameters
    ----------
    extra
        Name of the extra in `pyproject.toml` that lists the module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in {"", "ridgewalk"}:
            raise
        install = f"pip install 'ridgewalk[{extra}]'"
        message = f"{module} is not installed; it comes with the extra {extra!r}: {install}"
        raise ImportError(message, name=module) from error
