"""Frozen dataclasses registered as pytrees: fields are static unless declared with `array_field`.

Samplers, preconditioners, dynamics and priors are such classes; they are arguments of compiled functions.
"""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def array_field(**options: Any) -> Any:
    """A dataclass field that holds arrays (or pytrees of them): traced by JAX, so new values do not recompile."""
    return dataclasses.field(metadata={"array": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(array_field, dataclasses.field))
def pytree_dataclass(cls: type[T]) -> type[T]:
    """Class decorator: a frozen dataclass, registered with `jax.tree_util.register_dataclass`.

    Fields declared with `array_field()` are data fields of the pytree. All others are metadata, which JAX compares by
    equality in its compilation cache: two equal samplers share one compiled loop.
    """
    frozen = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(frozen)  # type: ignore[arg-type]
    arrays = [field.name for field in fields if field.metadata.get("array")]
    static = [field.name for field in fields if not field.metadata.get("array")]
    jax.tree_util.register_dataclass(frozen, data_fields=arrays, meta_fields=static)
    return frozen
