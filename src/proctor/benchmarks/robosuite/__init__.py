"""robosuite 1.5 with the five tasks of robomimic, in an interpreter of its own."""
