"""Runs on several processes: `initialize`, `shard`, and the error where a process is lost.

Names are imported on first use, so that `ridgewalk launch` does not load JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgewalk.distributed.processes import ProcessLostError as ProcessLostError
    from ridgewalk.distributed.processes import initialize as initialize
    from ridgewalk.distributed.shards import Sharded as Sharded
    from ridgewalk.distributed.shards import shard as shard

_MODULES = {
    "ProcessLostError": "ridgewalk.distributed.processes",
    "initialize": "ridgewalk.distributed.processes",
    "Sharded": "ridgewalk.distributed.shards",
    "shard": "ridgewalk.distributed.shards",
}

__all__ = ["ProcessLostError", "Sharded", "initialize", "shard"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
