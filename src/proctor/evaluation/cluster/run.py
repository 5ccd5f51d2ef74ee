"""A Ray cluster: finds nodes, starts an engine on each, and reports lost nodes.

Ray never restarts an engine by itself, because the new one would not hold the leases that the head
assumes. Instead the head starts another engine, as on a node that has just joined.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from proctor import plugins
from proctor.config.base import RunConfig
from proctor.engine.cluster.cluster_engine import count_text, node_failure_reason
from proctor.engine.cluster.messages import Cluster, EpisodeBatch, NodeJoined, NodeLost, NodeReport
from proctor.engine.processes.forking import end_fork_server
from proctor.engine.rollout_settings import RolloutSettings
from proctor.errors import strip_control_codes
from proctor.evaluation.cluster.node import Node, NodeSetup
from proctor.evaluation.executor import ClusterExecutor, Executor, LocalExecutor
from proctor.policies.base import Policy, PolicyConfig
from proctor.system.platform.platform_info import torch_hardware
from proctor.system.ray_cluster import import_ray, join_cluster

_CLOSE_S = 5.0


def make_executor(
    config: RunConfig,
    settings: RolloutSettings,
    policy: Policy,
    folder: Path,
    protocol: Callable[[], dict[str, Any]],
) -> Executor:
    """Return the executor of the run in ``folder``: this process's engine, or a cluster."""
    address = config.cluster
    if address is None:
        return LocalExecutor(settings, policy)

    def joined() -> Cluster:
        setup = NodeSetup(
            config=type(config),
            settings=config.as_dict() | {"cluster": None},
            protocol=protocol(),
            folder=Path.cwd(),
            torch_threads=torch_hardware().get("torch_threads"),
            judged_images=settings.judged_images,
        )
        on = policy.spec.device_type or ""
        return RayCluster(address, setup, config.policy, on_gpus=on.startswith("cuda"))

    return ClusterExecutor(joined, settings.limits, folder, _say)


def _say(line: str) -> None:
    print(strip_control_codes(f"cluster: {line}"), file=sys.stderr, flush=True)


class _Actor(Node):
    """A node in a process of its own, which Ray kills after ``close``."""

    def close(self) -> None:
        """End the engine and all its processes."""
        super().close()
        end_fork_server()


class RayCluster:
    """One engine on every node, or on each of its GPUs."""

    def __init__(
        self, address: str, setup: NodeSetup, policy: PolicyConfig, *, on_gpus: bool
    ) -> None:
        self._ray = import_ray()
        self._on_gpus = on_gpus
        self._policy = policy
        self._actors: dict[str, Any] = {}
        self._calls: dict[Any, str] = {}  # the one call in flight of every node
        self._names: dict[str, int] = {}  # nodes in the order of joining
        self._wanting: set[str] = set()
        self._checkpoint: Any = None
        self._leave = join_cluster(address)
        self._sent = self._ray.put(setup)
        nodes = self._nodes()
        cores, gpus = (sum(int(n["Resources"].get(k, 0)) for n in nodes) for k in ("CPU", "GPU"))
        counts = (len(nodes), "node"), (cores, "core"), (gpus, "GPU")
        _say(f"{address}: {', '.join(count_text(*count) for count in counts)}")

    def start_nodes(self, exclude: Collection[str]) -> list[NodeJoined]:
        """Start an engine on every idle node that is not in ``exclude``; return the new ones."""
        started = []
        for node in self._nodes():
            number = self._names.setdefault(node["NodeID"], len(self._names) + 1)
            gpus = int(node["Resources"].get("GPU", 0)) if self._on_gpus else 1
            cores = int(node["Resources"].get("CPU", 0)) // max(1, gpus)
            for gpu in range(gpus if cores else 0):
                node_id = f"{node['NodeID']}/{gpu}"
                if node_id not in exclude and node_id not in self._actors:
                    self._actors[node_id] = self._start(node["NodeID"], cores)
                    of_gpu = f", GPU {gpu}" if self._on_gpus else ""
                    name = f"node {number} ({node['NodeManagerHostname']}{of_gpu})"
                    started.append(NodeJoined(node_id, name))
        return started

    def _nodes(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]

    def _start(self, node: str, cores: int) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        on_node = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = self._ray.remote(_Actor).options(
            num_cpus=cores,
            num_gpus=1 if self._on_gpus else 0,
            max_restarts=0,
            max_concurrency=2,  # a call that waits for a report does not block close()
            scheduling_strategy=on_node,
        )
        return actor.remote(self._sent, cores)

    def give(self, node_id: str, episode_batch: EpisodeBatch | None) -> None:
        """Send a node a batch, and the policy's checkpoint if the node asked for it."""
        checkpoint = self._checkpoint_ref() if node_id in self._wanting else None
        self._wanting.discard(node_id)
        self._calls[self._actors[node_id].exchange.remote(episode_batch, checkpoint)] = node_id

    def _checkpoint_ref(self) -> Any:
        """Put the checkpoint's files into Ray's object store, once."""
        if self._checkpoint is None:
            read_from = plugins.find_policy(self._policy.type).local_checkpoint
            assert read_from is not None
            self._checkpoint = self._ray.put(_files_in(read_from(self._policy)))
        return self._checkpoint

    def poll(self, timeout_s: float) -> list[tuple[str, NodeReport | NodeLost]]:
        """Return the nodes' reports, waiting up to ``timeout_s`` seconds for the first."""
        ray, calls = self._ray, list(self._calls)
        if calls:
            ray.wait(calls, num_returns=1, timeout=timeout_s)
            calls, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        else:
            time.sleep(timeout_s)
        finished = [(self._calls.pop(call), call) for call in calls]
        return [(node_id, self._report_of(node_id, call)) for node_id, call in finished]

    def _report_of(self, node_id: str, call: Any) -> NodeReport | NodeLost:
        try:
            report: NodeReport = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.kill(self._actors.pop(node_id))
            return NodeLost(node_failure_reason(error))
        if report.wants_checkpoint:
            self._wanting.add(node_id)
        if report.failure is not None:
            self._ray.kill(self._actors.pop(node_id))
        return report

    def close(self) -> None:
        """End all engines and leave the cluster, even if an engine fails to end."""
        with contextlib.ExitStack() as closing:
            closing.callback(self._leave)
            actors, self._actors = list(self._actors.values()), {}
            for actor in actors:
                closing.callback(self._ray.kill, actor)
            calls = [actor.close.remote() for actor in actors]
            if calls:
                self._ray.wait(calls, num_returns=len(calls), timeout=_CLOSE_S)


def _files_in(folder: Path) -> Mapping[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
