"""Imported once by the process that workers are forked from: LIBERO's modules, loaded quietly."""

from proctor.benchmarks.libero_world import import_libero

import_libero()
