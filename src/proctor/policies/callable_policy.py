"""Policies that are Python objects, as given to ``proctor.evaluate(policy=...)``.

The object acts in the engine, whatever its spec says. It belongs to the caller and is not closed.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from proctor.errors import UsageError
from proctor.features import Array, Feature, Interface, observed_keys
from proctor.fingerprint import PRESENTATION
from proctor.policies.base import (
    Batch,
    Placement,
    Policy,
    PolicyConfig,
    PolicyPlugin,
    PolicySpec,
    flag,
)
from proctor.policies.checks import check_policy
from proctor.system.platform.source_files import source_hashes
from proctor.system.user_code import is_installed
from proctor.types import EpisodeSpec

TASK = "task"
"""Key of the instruction in a function's observation, as in LeRobot."""


@dataclass(frozen=True)
class PolicyFunction:
    """A function as a policy, with its options.

    ``call(observation)`` gets ``{key: array}`` of one step of one episode, and the instruction
    under "task". It returns an action [A] or a chunk [T, A]. It must be stateless: calls of many
    episodes are interleaved. A stateful policy is a ``Policy`` with ``new_episode``.
    """

    call: Callable[[dict[str, Any]], Any]
    """The function: observation in, action or chunk out."""
    inputs: Sequence[str] | None = None
    """Observation keys it needs; None: all cameras and states, rendered at every call."""
    batched: bool = False
    """Whether it takes [B, ...] with "task" a list, and returns [B, A] or [B, T, A]."""
    name: str = ""
    """Name in the run folder and in tables; empty: the function's own name."""
    version: str | None = None
    """Version of the weights: a run can be resumed only with the same version."""


@dataclass
class CallableConfig(PolicyConfig):
    """The config of an object: its name, which is all that a file can hold."""

    type: str = "python"
    name: str = flag("", "name of the object")
    handed: Any = field(
        default=None, compare=False, repr=False, metadata={"hidden": True} | PRESENTATION
    )
    """The object itself, which no flag can set."""


def policy_name(handed: Any) -> str:
    """Return the object's name, for folders and tables."""
    if isinstance(handed, Policy):
        return str(getattr(getattr(handed, "spec", None), "name", type(handed).__name__))
    if isinstance(handed, type):
        raise UsageError(
            f"policy={handed.__name__} is a class; pass an object, or name the class as "
            f'policy={{"type": "{handed.__module__}:{handed.__qualname__}"}}',
            code="policy.is-class",
        )
    if hasattr(handed, "select_action"):
        raise UsageError(
            f"policy={type(handed).__name__} keeps its episode's state inside itself; save it "
            "with save_pretrained(FOLDER) and pass policy=FOLDER",
            code="policy.holds-episode-state",
        )
    if isinstance(handed, PolicyFunction):
        return handed.name or policy_name(handed.call)
    if not callable(handed):
        raise UsageError(
            f"policy={handed!r}: expected a name, a checkpoint's folder, settings, a Policy or a "
            "function of an observation",
            code="policy.not-callable",
        )
    return str(getattr(handed, "__name__", type(handed).__name__)).strip("<>")


def make(config: CallableConfig, interface: Interface) -> Policy:
    """Return the object as a ``Policy``."""
    handed = config.handed
    if handed is None:
        named = f"the policy {config.name!r}" if config.name else f"--policy.type={config.type}"
        raise UsageError(
            f"{named} is a Python object, which neither a folder nor a flag can "
            "hold; pass it: proctor.evaluate(policy=OBJECT, ...)",
            code="policy.object-missing",
        )
    if isinstance(handed, Policy):
        check_policy(handed)
        return _ForwardingPolicy(handed)
    if not isinstance(handed, PolicyFunction):
        handed = PolicyFunction(handed)
    return _ForwardingPolicy(_FunctionPolicy(handed, interface), _code_of(handed.call))


class _ForwardingPolicy(Policy):
    """Forwards every call to the object except ``close``."""

    def __init__(self, policy: Policy, code: dict[str, str] | None = None) -> None:
        self.spec = replace(policy.spec, placement=Placement.ENGINE)
        self._policy = policy
        self._code = _code_of(type(policy)) if code is None else code
        self._only_this = secrets.token_hex(8)

    def act(self, batch: Batch) -> Array | Sequence[Array]:
        """Return the object's actions."""
        return self._policy.act(batch)

    def new_episode(self, spec: EpisodeSpec) -> Any:
        """Return the object's state of a new episode."""
        return self._policy.new_episode(spec)

    def end_episode(self, state: Any) -> None:
        """End the episode in the object."""
        self._policy.end_episode(state)

    def warm_up(self, features: Mapping[str, Feature], most: int) -> Iterator[None]:
        """Let the object prepare."""
        return self._policy.warm_up(features, most)

    def protocol(self) -> dict[str, Any]:
        """Return the object's protocol, or a random id if it has none.

        Without a protocol its weights are unknown, so no other object can complete its run.
        """
        said = self._policy.protocol() or {"object_id": self._only_this}
        return {"code": self._code, **said}


class _FunctionPolicy(Policy):
    """Calls a function for every query, or once for the batch."""

    def __init__(self, function: PolicyFunction, interface: Interface) -> None:
        inputs = function.inputs
        if isinstance(inputs, str):
            inputs = [inputs]
        self._function = function
        self.spec = PolicySpec(
            policy_name(function),
            observed_keys(interface.features) if inputs is None else tuple(inputs),
            n_action_steps=None,
            bit_exact=not function.batched,
        )

    def act(self, batch: Batch) -> list[Array]:
        """Return the function's actions, one chunk for each query."""
        now = {key: values[:, -1] for key, values in batch.observations.items()}
        tasks = [query.spec.task.instruction for query in batch.queries]
        if self._function.batched:
            said = _arrays(self._function.call({**now, TASK: tasks}))
        else:
            said = [
                _array(self._function.call({**{k: v[row] for k, v in now.items()}, TASK: task}))
                for row, task in enumerate(tasks)
            ]
        return [actions[None] if actions.ndim == 1 else actions for actions in said]

    def protocol(self) -> dict[str, Any]:
        """Return the version, if there is one."""
        return {} if self._function.version is None else {"version": self._function.version}


def _arrays(said: Any) -> list[Array]:
    """Return the rows of a batched function's result: an array, a tensor or a list of them."""
    return [_array(row) for row in (said if isinstance(said, list | tuple) else _array(said))]


def _array(said: Any) -> Array:
    """Return an action as an array; a tensor may be on a GPU and need gradients."""
    if hasattr(said, "detach"):
        said = said.detach().cpu()
    return np.asarray(said, dtype=np.float32)


def _code_of(code: Any) -> dict[str, str]:
    """Return the hashes of the source files of an object; empty for installed packages."""
    known = code if inspect.isclass(code) or inspect.isroutine(code) else type(code)
    try:
        file = Path(inspect.getsourcefile(known) or "")
    except TypeError:
        return {}
    if not file.is_file() or is_installed(file):
        return {}
    inside = 0 if known.__module__ == "__main__" else known.__module__.count(".")
    return source_hashes(file, inside + (file.stem == "__init__"))


PLUGIN = PolicyPlugin(
    config=CallableConfig,
    make=make,
    summary="a Python object given to proctor.evaluate(policy=...); no flag can name one",
)
