"""``proctor eval --robot``: trials of policies on a robot."""
