"""Import the modules that were sent: {name: text, or bytes packed by zlib and base 85}."""

import sys
from _frozen_importlib import ModuleSpec  # importlib.machinery would cost 2 ms more


class Loader:
    def __init__(self, sources):
        self.sources = sources
        parents = {name.rsplit(".", depth)[0] for name in sources for depth in (1, 2, 3)}
        self.packages = parents - set(sources)

    def find_spec(self, name, path=None, target=None):
        is_package = name in self.packages
        if is_package or name in self.sources:
            return ModuleSpec(name, self, is_package=is_package)  # type: ignore[arg-type]
        return None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        text = self.sources.get(module.__name__, "")
        if isinstance(text, bytes):
            import base64
            import zlib

            text = zlib.decompress(base64.b85decode(text))
        file = module.__name__.replace(".", "/") + ".py"  # for tracebacks
        # At its first import: what is needed only at times is imported where it is needed.
        exec(compile(text, file, "exec", dont_inherit=True), module.__dict__)


def run_verb(sources, verb):
    sys.meta_path.insert(0, Loader(sources))
    from clusterctl.payload.prelude import run

    run("clusterctl.payload." + verb)
