"""``proctor view``: the list of runs, and their pages over HTTP."""
