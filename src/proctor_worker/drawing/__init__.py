"""The drawing process: draws MuJoCo scenes with warp, for all workers of a run.

It needs numpy, mujoco >= 3.13, warp-lang and mujoco-warp. ``scene`` has the records of both sides,
``server`` collects requests into batches, ``flat_model`` and ``warp_drawer`` draw them.
"""
