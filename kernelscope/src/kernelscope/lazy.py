"""Public names of a package that are imported when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(
    package: str, names: Mapping[str, str], others: Mapping[str, str] | None = None
) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return a package's __all__, __getattr__ and __dir__.

    names maps each submodule to the space-separated names it exports. others: the same for modules
    of other packages, by their full names.
    """
    modules = {f"{package}.{home}": given for home, given in names.items()} | dict(others or {})
    homes = {name: home for home, given in modules.items() for name in given.split()}
    space = vars(sys.modules[package])

    def getattr_(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(homes[name])
        if not hasattr(module, name):  # a module of that package
            return import_module(f"{module.__name__}.{name}")
        value = space[name] = getattr(module, name)
        return value

    return list(homes), getattr_, lambda: sorted({*space, *homes})
