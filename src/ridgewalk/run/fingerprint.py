"""The settings of a run in words and numbers, so that a resumed run can be compared with the one that was begun."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ridgewalk.data import Batches


def describe(value: Any) -> Any:
    """A JSON value that is equal for equal settings; functions count by their name, arrays by their content."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return value.item() if isinstance(value, np.generic) else _array(value)
    return _object(value)


def _object(value: Any) -> Any:
    """A function by its name, anything else by its parts."""
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    kind = {"type": type(value).__name__}
    if isinstance(value, Batches):
        return {**kind, "size": value.size}
    if isinstance(value, functools.partial):
        return {**kind, "function": describe(value.func), "arguments": describe([value.args, value.keywords])}
    if dataclasses.is_dataclass(value):
        return {**kind, **{field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}}
    leaves, structure = jax.tree.flatten(value)
    return kind if jax.tree_util.treedef_is_leaf(structure) else {**kind, "leaves": describe(leaves)}


def _array(value: Any) -> str:
    """Shape, dtype and a checksum of at most a thousand rows spread over the array: it may be larger than memory."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"key {np.asarray(jax.random.key_data(value)).tolist()}"
    rows = np.asarray(value[:: max(1, value.shape[0] // 1000)] if value.shape else value)
    digest = hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()[:16]
    return f"{value.dtype}{list(value.shape)} {digest}"


def differences(then: Any, now: Any, where: str = "") -> list[str]:
    """Every setting that differs, with both values."""
    if isinstance(then, dict) and isinstance(now, dict):
        keys = [*then, *(key for key in now if key not in then)]
        return [
            line
            for key in keys
            for line in differences(then.get(key), now.get(key), f"{where}.{key}" if where else str(key))
        ]
    return [] if then == now else [f"{where}: {then!r} then, {now!r} now"]
