"""Everything that an online training needs, built and checked before anything is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from proctor.config.online_training import DemonstrationSettings, OnlineTrainConfig, parse_address
from proctor.config.sections.online import LeRobotFix
from proctor.datasets import reader
from proctor.datasets.reading.dataset import Dataset
from proctor.errors import UsageError
from proctor.features import ACTION, Feature, FeatureKind, Interface
from proctor.policies.gaussian_actor.network import GaussianActorNetwork
from proctor.policies.lerobot.checkpoint.pretrained import PretrainedConfig, local_checkpoint
from proctor.policies.runtime.runner import pick_device
from proctor.rl.algorithms.base import Algorithm
from proctor.rl.algorithms.sac import Sac
from proctor.rl.environment.setup import environment_interface, start_notes
from proctor.rl.learner.checkpoints import ALGORITHM, read_sac
from proctor.rl.learner.learner import Learner
from proctor.rl.link.links import LearnerEndpoint
from proctor.rl.link.payloads import TransitionSpec
from proctor.rl.policy_parts import TrainedPolicy, make_policy
from proctor.rl.replay.buffer import ReplayBuffer
from proctor.rl.replay.datasets import fill_from_dataset, rewards_are_assumed
from proctor.rl.replay_storage import ReplayCursor, ReplayStorage, StorageSettings
from proctor.system.limits import ServerLimits
from proctor.system.loopback import LOOPBACK
from proctor.trained_starts import TrainedStarts
from proctor.training.checkpoints.saving import PRETRAINED
from proctor.training.checkpoints.trained_starts import episode_starts
from proctor.training.rng import RngStreams


@dataclass(frozen=True)
class Demonstrations:
    """An open dataset of demonstrations."""

    name: str
    dataset: Dataset

    @property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """Statistics of its features."""
        return self.dataset.stats

    @property
    def notes(self) -> list[str]:
        """Lines that the user should see once."""
        if not rewards_are_assumed(self.dataset):
            return []
        return [f"{self.name} has no next.reward: the last step of each episode gets reward 1"]

    @property
    def text(self) -> str:
        """Name and size, for the headline."""
        return f"{len(self.dataset):,} demonstrated steps of {self.name}"

    @property
    def trained_starts(self) -> TrainedStarts:
        """The starts of the demonstrations that are read."""
        starts, chosen = self.dataset.episodes.starts, self.dataset.chosen.tolist()
        return episode_starts(self.name, starts, chosen)

    def fill(self, buffer: ReplayBuffer) -> None:
        """Add the demonstrations to an empty buffer."""
        fill_from_dataset(buffer, self.dataset, lambda done, total: None)


def open_demonstrations(settings: DemonstrationSettings, action_size: int) -> Demonstrations:
    """Open the dataset of demonstrations for an environment with ``action_size`` actions."""
    dataset = reader.open(
        settings.path_or_id,
        root=settings.root,
        episodes=settings.episodes,
        revision=settings.revision,
    )
    found = dataset.info.features.get(ACTION, {}).get("shape", ())
    if tuple(found) != (action_size,):
        raise UsageError(
            f"{settings.name} has actions of shape {list(found)}, and the environment takes "
            f"{action_size} numbers",
            code="rl.demonstrations-mismatch",
        )
    return Demonstrations(settings.name, dataset)


_MOST_REMOTE_ACTORS = 16
_NOT_ENCRYPTED = ", not encrypted (--tls_cert and --tls_key encrypt)"


@dataclass(frozen=True)
class OnlineSetup:
    """The fixed parts of an online training."""

    config: OnlineTrainConfig
    interface: Interface
    policy: TrainedPolicy
    demonstrations: Demonstrations | None
    device: torch.device

    def make_algorithm(self) -> Algorithm:
        """Return the algorithm with the policy's network.

        Its critics are new, or those of the checkpoint that ``--policy.path`` names.
        """
        config, network = self.config, self.policy.parts.network
        assert isinstance(network, GaussianActorNetwork)
        with RngStreams(config.seed).seed_weight_init():
            sac = Sac(
                network,
                config.algorithm,
                torch.Generator(self.device).manual_seed(config.seed),
                fix_penalty=LeRobotFix.PENALTY in config.rl.fixes,
            )
        if isinstance(config.policy, PretrainedConfig):
            checkpoint = local_checkpoint(config.policy).parent
            if (checkpoint / ALGORITHM).is_dir():
                read_sac(sac, checkpoint)
        return sac

    def open_storage(self, folder: Path, admitted: ReplayCursor) -> ReplayStorage:
        """Open the replay buffers in ``folder`` as they were after ``admitted`` transitions."""
        policy, config = self.policy.config, self.config
        settings = StorageSettings(
            keys=tuple(policy.input_features),
            action_size=policy.action_dim,
            online_capacity=policy.online_buffer_capacity,
            offline_capacity=policy.offline_buffer_capacity,
            batch_size=config.batch_size,
            online_ratio=config.online_ratio,
            seed=config.seed,
            fixes=config.rl.fixes,
            storage_device=policy.storage_device,
            device=self.device,
            memory_bytes=int(config.rl.memory_gb * 1e9),
        )
        fill = None if self.demonstrations is None else self.demonstrations.fill
        return ReplayStorage(folder, settings, self.policy.parts.preprocessor, fill, admitted)

    @contextmanager
    def serve(self, endpoint: LearnerEndpoint) -> Iterator[str]:
        """Serve the learner to actors of other machines; yield its address."""
        from proctor.rl.learner.service import LearnerService

        host, port = learner_address(self.config, self.policy)
        limits = ServerLimits(
            host=host,
            api_key=self.config.api_key,
            tls=self.config.tls_files,
            max_clients=_MOST_REMOTE_ACTORS,
        )
        spec = TransitionSpec(
            {key: _stored_shape(f) for key, f in self.policy.config.input_features.items()},
            self.interface.action.size,
        )
        service = LearnerService(endpoint, spec, limits, port)
        plain = host not in LOOPBACK and limits.tls is None
        try:
            yield f"{host}:{service.port}" + (_NOT_ENCRYPTED if plain else "")
        finally:
            service.close()

    def headline(self, learner: Learner, folder: Path) -> list[str]:
        """Return the lines that are shown at the start."""
        millions = sum(p.numel() for p in self.policy.parts.network.parameters()) / 1e6
        resumed = learner.counters.environment_steps
        begun = f" (from step {resumed:,})" if resumed else ""
        shown = "" if self.demonstrations is None else f", {self.demonstrations.text}"
        pace = "lockstep" if learner.settings.lockstep else "free-running"
        lines = [
            f"{self.policy.config.type}, {millions:.2f} M parameters, {self.config.algorithm.type} "
            f"in {self.interface.name}{shown}, {self.device}, {pace}: "
            f"{learner.settings.online_steps:,} environment steps{begun} -> {folder}"
        ]
        notes = [] if self.demonstrations is None else self.demonstrations.notes
        notes = [*self.policy.notes, *notes, *start_notes(self.config)]
        return [*lines, *(f"note: {note}" for note in notes)]


def _stored_shape(feature: Feature) -> tuple[int, ...]:
    """Return the shape in a transition: images are [C, H, W]."""
    if feature.kind is not FeatureKind.VISUAL:
        return feature.shape
    height, width, channels = feature.shape
    return channels, height, width


def learner_address(config: OnlineTrainConfig, policy: TrainedPolicy) -> tuple[str, int]:
    """Return host and port of the learner: --learner, or the policy's actor_learner_config."""
    if config.learner is not None:
        return parse_address(config.learner)
    given = policy.config.actor_learner
    return given.learner_host, given.learner_port


def prepare(config: OnlineTrainConfig, resumed: Path | None = None) -> OnlineSetup:
    """Build and check everything; ``resumed`` is the checkpoint to resume from."""
    interface = environment_interface(config)
    demonstrations = None
    if config.dataset.is_given:
        demonstrations = open_demonstrations(config.dataset, interface.action.size)
    statistics = None if demonstrations is None else demonstrations.statistics
    checkpoint = None if resumed is None else resumed / PRETRAINED
    policy = make_policy(config, interface, checkpoint, statistics)
    device = pick_device(policy.config.device or "auto")
    policy.parts.network.to(device)
    return OnlineSetup(config, interface, policy, demonstrations, device)
