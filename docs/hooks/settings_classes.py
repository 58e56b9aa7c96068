"""Tells the reference that classes made by `settings` are dataclasses."""

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


class SettingsClasses(Extension):
    """A griffe extension; mkdocs.yml names this file."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Add the decorator that griffe knows, and defaults of `array(…)` fields."""
        if not any(str(decorator.value) == "settings" for decorator in cls.decorators):
            return
        cls.decorators.append(
            Decorator(ExprName("dataclasses.dataclass"), lineno=None, endlineno=None)
        )
        for member in cls.members.values():
            if isinstance(member, Attribute) and isinstance(member.value, ExprCall):
                _give_default(member, member.value)


def _give_default(field: Attribute, made: ExprCall) -> None:
    if str(made.function) == "array":
        named = (one for one in made.arguments if isinstance(one, ExprKeyword))
        field.value = next((one.value for one in named if one.name == "default"), None)
