"""Names and numbers of the embodiments that the base models know. No torch here."""

from __future__ import annotations

NEW, LIBERO = "new_embodiment", "libero_sim"
EMBODIMENTS = {
    "oxe_droid_relative_eef_relative_joint": 24,
    "xdof_relative_eef_relative_joint": 27,
    "xdof_relative_eef_relative_joint_subtask": 27,
    "real_g1_relative_eef_relative_joints": 25,
    "real_r1_pro_sharpa_relative_eef": 26,
    "real_r1_pro_sharpa_relative_eef_human": 26,
    "real_r1_pro_sharpa_relative_eef_maxinsights": 26,
    "real_r1_pro_sharpa_relative_eef_mecka": 26,
    "unitree_g1_full_body_with_waist_height_nav_cmd": 25,
    "simpler_env_google": 0,
    "simpler_env_widowx": 1,
    LIBERO: 2,
    NEW: 10,
}
"""N1.7's numbers of the embodiments where a checkpoint has no embodiment_id.json."""
EXECUTED = {LIBERO: 8}
"""Actions that are executed per inference, where it is not the whole horizon."""
N15_EMBODIMENTS = {
    NEW: 31,
    "oxe_droid": 17,
    "agibot_genie1": 26,
    "gr1": 24,
    "so100": 2,
    "unitree_g1": 3,
}
"""N1.5's numbers."""
