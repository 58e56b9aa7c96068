"""ArviZ, imported late (it is slow to import) and without its announcement of version 1."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def arviz() -> Any:
    """The module."""
    with warnings.catch_warnings():
        # ArviZ 0.x announces its 1.0 on import; that is not the user's concern.
        warnings.simplefilter("ignore", FutureWarning)
        import arviz as module  # noqa: PLC0415
    return module


@contextmanager
def quiet() -> Iterator[None]:
    """No log lines from ArviZ about draws too few or constant: these come back as NaN, which is judged here."""
    logger = logging.getLogger("arviz")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        logger.setLevel(level)
