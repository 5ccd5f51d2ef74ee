"""Imported once by the process that workers are forked from: LIBERO's modules, loaded quietly."""

import numpy as np

from proctor.benchmarks.libero.world import import_libero

import_libero()

from robosuite.utils.transform_utils import mat2quat  # noqa: E402

mat2quat(np.eye(3))  # the first call of anything compiled loads the rest of numba: 1.5 s
