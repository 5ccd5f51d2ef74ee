"""Start the server of a world, or a function: ``python .../__main__.py MODULE:FUNCTION ARGUMENT``.

It runs as a file, because the folder that holds this package may hold packages of the interpreter
that started it. Only the packages that are named on the command line become importable.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  before any import


def _main() -> None:
    if sys.version_info < (3, 8):  # noqa: UP036  any interpreter may be given
        sys.stderr.write("Python %d.%d is too old: 3.8 is needed\n" % sys.version_info[:2])
        sys.exit(3)
    if sys.path and os.path.realpath(sys.path[0] or os.curdir) == os.path.realpath(HERE):
        del sys.path[0]
    import importlib
    import importlib.util

    for folder in [HERE, *filter(None, os.environ.pop("PROCTOR_WORKER_PACKAGES", "").split(":"))]:
        name = os.path.basename(folder)  # noqa: PTH119
        found = importlib.util.spec_from_file_location(
            name,
            os.path.join(folder, "__init__.py"),  # noqa: PTH118
            submodule_search_locations=[folder],
        )
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module
        found.loader.exec_module(module)
    words = sys.argv[1:]
    place, _, function = words[0].partition(":")
    if function:  # of a package that was named above
        getattr(importlib.import_module(place), function)(*words[1:])
        return
    if words[0] == "draw":
        from proctor_worker.drawing.server import serve_descriptors as serve

        serve(words[1:])
        return
    from proctor_worker.server import serve_descriptors

    serve_descriptors(words)


if __name__ == "__main__":
    _main()
