"""One registered environment of gymnasium or gym as a world."""

from typing import Any, Dict

from proctor_worker.gym_env.carryover import Carryover
from proctor_worker.gym_env.inspection import Inspection
from proctor_worker.gym_env.opener import GymOpener
from proctor_worker.gym_env.sim import EnvSim
from proctor_worker.gym_env.success import parse_success


def make(config: Dict[str, Any]) -> "GymWorld":
    """Return the world of ``config``: id, kwargs, success, episode_length, carryover."""
    return GymWorld(config)


class GymWorld:
    """One environment; ``carryover`` is in the config once it is known."""

    def __init__(self, config: Dict[str, Any]) -> None:
        self._config = config
        self._rule = parse_success(config["success"])
        self._opener = GymOpener(config["id"], config["kwargs"])

    def describe(self) -> Dict[str, Any]:
        """Open the environment, try it, and return its facts."""
        length = self._config["episode_length"]
        found = Inspection(self._opener, self._rule, length).run()
        return {
            "tasks": [task._asdict() for task in found.tasks],
            "features": found.features,
            "action": found.action,
            "distributions": list(found.distributions),
            "carryover": found.carryover.value,
            "notes": list(found.notes),
        }

    def open(self, task: Dict[str, Any]) -> EnvSim:
        """Open the environment of ``task``."""
        fresh = Carryover(self._config["carryover"]) is not Carryover.NONE

        def open_env() -> Any:
            return self._opener.task(task["suite"], task["task_id"])

        return EnvSim(open_env, self._rule, fresh)
