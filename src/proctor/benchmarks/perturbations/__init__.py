"""Perturbations of episodes (``--perturb``): names, levels and the version of their definitions.

Every perturbed episode is paired with the clean episode of the same seed and init state. This
module imports nothing: ``proctor eval --help`` reads it.
"""

DEFINITIONS = 3
"""Version of the definitions below this package. It goes up when a level means something else."""
LEVELS = (1, 2, 3)
ALL = "all"
"""Every dimension that the benchmark supports and the policy can notice."""
DIMENSIONS = (
    "camera",
    "light",
    "texture",
    "noise",
    "blur",
    "occlusion",
    "state_noise",
    "action_noise",
    "delay",
    "robot_pose",
    "language",
)
