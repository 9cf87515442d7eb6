"""Stand-ins for modules that exist only beside a GPU, so that the loaders' Python code can be imported without one. Nothing
that reads a checkpoint is replaced: only kernels, which these tests never run."""

import importlib.abc
import importlib.machinery
import sys
import types


class Anything:
    """Replaces a kernel's module at import: callable, with every attribute."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, *args, **__):
        # as a decorator it leaves the function as it is
        return args[0] if len(args) == 1 and callable(args[0]) else Anything()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __mro_entries__(self, bases):
        return (object,)


class Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if any(name == stem or name.startswith(stem + ".") for stem in self.names):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass


def install(*names):
    sys.meta_path.insert(0, Finder(names))
