"""Tells the API reference that `pytree_dataclass` makes dataclasses."""

from typing import Any

from griffe import (
    Attribute,
    Class,
    Decorator,
    ExprCall,
    ExprKeyword,
    ExprName,
    Extension,
)


class PytreeDataclasses(Extension):
    """A griffe extension; mkdocs.yml names this file."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Add the decorator that griffe knows, and defaults of `array_field(…)`."""
        if "pytree_dataclass" not in {str(one.value) for one in cls.decorators}:
            return
        cls.decorators.append(
            Decorator(ExprName("dataclasses.dataclass"), lineno=None, endlineno=None)
        )
        for member in cls.members.values():
            if isinstance(member, Attribute) and isinstance(member.value, ExprCall):
                _give_default(member, member.value)


def _give_default(field: Attribute, made: ExprCall) -> None:
    if str(made.function) == "array_field":
        named = (one for one in made.arguments if isinstance(one, ExprKeyword))
        field.value = next((one.value for one in named if one.name == "default"), None)
