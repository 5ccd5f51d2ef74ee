"""The simulator's side of a worker, for another interpreter: Python >= 3.8 and numpy, no Proctor.

``python proctor_worker/__main__.py`` serves one world over a socket and shared memory, or over
stdin and stdout. ``records`` has the interface of worlds, ``worlds/`` has the worlds.
"""

PROTOCOL = 4
"""Version of the messages between Proctor and this package."""
