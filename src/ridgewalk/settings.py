"""Frozen settings that JAX can trace: numbers and functions are static, arrays are leaves."""

import dataclasses
from typing import Any, TypeVar, dataclass_transform

import jax

T = TypeVar("T")


def array(**options: Any) -> Any:
    """A field that holds arrays: traced by JAX, so that new values do not compile again."""
    return dataclasses.field(metadata={"array": True}, **options)


@dataclass_transform(frozen_default=True, field_specifiers=(array, dataclasses.field))
def settings(cls: type[T]) -> type[T]:
    """Make a frozen dataclass and a pytree whose fields are static unless declared with `array()`.

    Static fields take part in the compilation cache by equality, so two equal samplers share one
    compiled loop.
    """
    frozen = dataclasses.dataclass(frozen=True)(cls)
    fields = dataclasses.fields(frozen)  # type: ignore[arg-type]
    arrays = [field.name for field in fields if field.metadata.get("array")]
    static = [field.name for field in fields if not field.metadata.get("array")]
    jax.tree_util.register_dataclass(frozen, data_fields=arrays, meta_fields=static)
    return frozen
