"""Tells the reference that a class made by `ridgewalk.settings.settings` is a dataclass, so that it has a signature."""

from typing import Any

from griffe import Attribute, Class, Decorator, ExprCall, ExprName, Extension


class SettingsClasses(Extension):
    """A griffe extension; mkdocs.yml names this file."""

    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        """Add the decorator that griffe knows, and give fields made by `array(…)` their default."""
        if not any(str(decorator.value) == "settings" for decorator in cls.decorators):
            return
        cls.decorators.append(Decorator(ExprName("dataclasses.dataclass"), lineno=None, endlineno=None))
        for member in cls.members.values():
            value = member.value if isinstance(member, Attribute) else None
            if isinstance(value, ExprCall) and str(value.function) == "array":
                member.value = next((argument.value for argument in value.arguments), None)
