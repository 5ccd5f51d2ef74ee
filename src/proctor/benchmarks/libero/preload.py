"""Imports LIBERO's modules without output; the process that forks workers imports this once."""

import numpy as np

from proctor.benchmarks.libero.world import import_libero

import_libero()

from robosuite.utils.transform_utils import mat2quat  # noqa: E402

mat2quat(np.eye(3))  # the first compiled call loads the rest of numba, which takes 1.5 s
