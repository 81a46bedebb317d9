"""The methods of a task by name: found in the modules of a package, built from settings."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from daedl.methods.base import BaseMethod
from daedl.names import look_up, subclasses_in

M = TypeVar("M", bound=BaseMethod)


class Table(Generic[M]):
    """Every class with its own `name` in a module of a package: a new file needs no entry.

    Arguments:
        package, paths: `__name__` and `__path__` of the package.
        kind: base class of the task's methods.
        example: name of a method, for errors.
    """

    def __init__(
        self, package: str, paths: Iterable[str], kind: type[M], example: str = "daedl"
    ) -> None:
        self.kind, self.example = kind, example
        named = [each for each in subclasses_in(package, paths, kind) if "name" in vars(each)]
        self.methods: Mapping[str, type[M]] = MappingProxyType(
            {each.name: each for each in sorted(named, key=lambda each: each.name)}
        )

    def build(self, method: str | M, /, **arguments: Any) -> M:
        """Build a method by its name in the table; a method is returned unchanged."""
        if isinstance(method, str):
            return self.build_for("", method, **arguments)
        if not isinstance(method, self.kind):
            raise TypeError(
                f"method is {method!r}; expected a name such as {self.example!r}, or a "
                f"{self.kind.__name__} such as {self.methods[self.example].__name__}()"
            )
        if arguments:
            raise TypeError(
                f"method is a {type(method).__name__} and settings {sorted(arguments)} were passed too; "
                "expected one of them: pass the settings to the method"
            )
        return method

    def build_for(self, data: str, name: str, /, **arguments: Any) -> M:
        """Build a method with the settings published for a dataset, "mnist" or "cifar10".

        `arguments` take precedence over published settings, and these over defaults. `member`, the
        method of an ensemble's members, is a method, a name, or {"name": ..., "arguments": ...}.
        """
        method = look_up(self.methods, name, "method")
        for setting in arguments:
            look_up(method.defaults(), setting, f"setting of {name}")
        arguments = {**method.published.get(data, {}), **arguments}
        match arguments.get("member"):
            case str(member):
                arguments["member"] = self.build_for(data, member)
            case {"name": member, "arguments": of_member}:
                arguments["member"] = self.rebuild(member, of_member)
        return method(**arguments)

    def rebuild(self, name: str, arguments: Mapping[str, Any]) -> M:
        """Rebuild a method from its `arguments()`, such as those in a model file.

        Settings that did not exist when the file was written have the values that reproduce its predictions,
        which need not be their defaults. Settings that no longer exist are ignored.
        """
        method = look_up(self.methods, name, "method")
        kept = {key: value for key, value in arguments.items() if key not in method.removed}
        return self.build(name, **{**method.since, **kept})
