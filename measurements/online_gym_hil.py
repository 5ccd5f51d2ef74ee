"""Online learning beside behaviour cloning: gym_hil's pick with a random cube, sparse reward.

    python -m measurements online_gym_hil [--seeds=3] [--demonstrations=20] [--steps=3000]
    python -m measurements online_gym_hil --images --device=cuda --demonstrations=5 --steps=20000

Each seed records its own scripted demonstrations, clones them with the policy's network, and trains
the same network online from scratch: SAC with half of each batch from the demonstrations and a
cloning term, in lockstep in one process. All are evaluated without noise on the same cubes, other
than those of training. With ``--intervene-every=N`` the expert takes over in each N-th episode. Its
steps become demonstrations too, and a second clone learns from all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from proctor.benchmarks.gym_hil.benchmark import GymHil, GymHilConfig, ObsType
from proctor.config.online_sections import (
    CriticNetworkSettings,
    InterventionSettings,
    InterventionSource,
    SacSettings,
)
from proctor.features import ACTION, Array, FeatureKind
from proctor.policies.gaussian_actor.config import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    GaussianActorConfig,
)
from proctor.policies.gaussian_actor.network import GaussianActorNetwork
from proctor.policies.lerobot.pipelines import default_pipelines
from proctor.policies.lerobot.processors import Stats
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.rl.actor_policy import ActorPolicy
from proctor.rl.algorithms.sac import Sac
from proctor.rl.environments import SimOnlineEnv
from proctor.rl.interventions import ExpertIntervention
from proctor.rl.replay.buffer import ReplayBuffer, ReplaySettings
from proctor.rl.replay.mixer import OnlineOfflineMixer
from proctor.rl.transitions import Transition, TransitionBatch
from proctor.stats.differences import Paired, p_value
from proctor.stats.rates import wilson_interval

_FIRST_DEMONSTRATION, _FIRST_EPISODE, _FIRST_TEST = 10**6, 2 * 10**6, 3 * 10**6
"""First seeds of demonstrations, of online episodes and of the evaluation: other cubes each."""
_LOW, _HIGH = np.array([0.25, -0.2, 0.0]), np.array([0.55, 0.2, 0.2])
"""Workspace of hand and cube in metres: the last three numbers of either state."""
_CONTINUOUS, _GRIPPER_COMMANDS = 3, 3


@dataclass(frozen=True)
class Settings:
    """One case."""

    demonstrations: int = 20
    noise: float = 0.0
    """Standard deviation of noise on the demonstrated motion, in actions."""
    steps: int = 3000
    utd: int = 2
    warm_up: int = 0
    """Updates on the demonstrations before the first step."""
    images: bool = False
    device: str = "cpu"
    width: int = 64
    latent: int = 64
    batch: int = 64
    critics: int = 2
    rate: float = 5e-4
    discount: float = 0.97
    cloning: float = 10.0
    gripper_cloning: float = 1.0
    temperature: float = 0.05
    clone_updates: int = 10_000
    intervene_every: int = 0
    """Episodes between two in which the expert takes over; 0: never."""
    intervene_after: int = 10
    """Steps before it takes over."""
    wide: bool = False
    """Normalise by the workspace, not by the range of the demonstrations."""
    limit_s: float = 1e9
    """Longest online learning; it then ends before ``steps``."""
    episode_length: int = 60
    tests: int = 150
    every: int = 0
    """Steps between evaluations; 0: at the end only."""


@dataclass(frozen=True)
class SeedResult:
    """What one seed gave: successes on the test episodes, and times."""

    seed: int
    cloned: list[bool]
    online: list[bool]
    cloned_all: list[bool]
    """The clone of demonstrations and interventions; empty without interventions."""
    steps: int
    intervention_steps: int
    cpu_s: float
    wall_s: float
    clone_cpu_s: float


class Case:
    """Environment, demonstrations and networks of one seed."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.device = torch.device(settings.device)
        torch.set_num_threads(1)
        kind = ObsType.PIXELS_AGENT_POS if settings.images else ObsType.STATE
        config = GymHilConfig(obs_type=kind, episode_length=settings.episode_length)
        benchmark = GymHil(config)
        self.env = SimOnlineEnv(benchmark, benchmark.tasks()[0])
        self.demonstrations = self._demonstrate()
        self.statistics = self._statistics()

    def _demonstrate(self) -> list[Transition]:
        """Return the transitions of successful scripted demonstrations."""
        kept: list[Transition] = []
        noise = np.random.default_rng(self.seed)
        number = n_kept = 0
        while n_kept < self.settings.demonstrations:
            episode = self._demonstration(_FIRST_DEMONSTRATION + 1000 * self.seed + number, noise)
            number += 1
            if episode[-1].reward > 0:
                kept += episode
                n_kept += 1
        return kept

    def _demonstration(self, seed: int, noise: np.random.Generator) -> list[Transition]:
        observation, expert = self.env.reset(seed), self.env.expert()
        low, high = self.env.action.bounds
        episode: list[Transition] = []
        while True:
            action = expert(self.env.privileged())
            action[:_CONTINUOUS] += self.settings.noise * noise.standard_normal(_CONTINUOUS)
            made = self.step(observation, np.clip(action, low, high))
            episode.append(made)
            observation = dict(made.next_observation)
            if made.done or made.truncated:
                return episode

    def step(self, observation: dict[str, Array], action: Array) -> Transition:
        """Execute one action."""
        step = self.env.step(action)
        return Transition(
            observation,
            np.asarray(action, np.float32),
            step.reward,
            step.observation,
            step.terminated,
            step.truncated,
        )

    def _statistics(self) -> Stats:
        """Return the range of the demonstrations' states, a little wider, and of actions."""
        stats: Stats = {}
        for key, feature in self.env.features.items():
            if feature.kind is FeatureKind.VISUAL:
                mean, std = (
                    torch.tensor(v).reshape(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD)
                )
                stats[key] = {"mean": mean, "std": std}
                continue
            rows = np.stack([one.observation[key] for one in self.demonstrations])
            low, high = rows.min(0), rows.max(0)
            if self.settings.wide:
                low[-3:], high[-3:] = np.minimum(low[-3:], _LOW), np.maximum(high[-3:], _HIGH)
            margin = 0.05 * (high - low) + 1e-3
            stats[key] = {"min": torch.tensor(low - margin), "max": torch.tensor(high + margin)}
        ones = torch.ones(_CONTINUOUS)
        stats[ACTION] = {"min": -ones, "max": ones}
        return stats

    def new_policy(self) -> LoadedCheckpoint:
        """Return a policy with random weights."""
        settings = self.settings
        torch.manual_seed(self.seed)
        hidden = {"hidden_dims": [settings.width] * 2}
        config = replace(
            GaussianActorConfig(),
            num_discrete_actions=_GRIPPER_COMMANDS,
            latent_dim=settings.latent,
            freeze_vision_encoder=False,
            shared_encoder=not settings.images,  # a shared one would learn from the critics only
            actor_network_kwargs=hidden,
            discrete_critic_network_kwargs=hidden,
        )
        config = config.with_features(self.env.features, self.env.action.size)
        config.validate()
        network = GaussianActorNetwork(config).to(self.device)
        before, after = default_pipelines(config, self.statistics, self.statistics)
        return LoadedCheckpoint(config, network, "", before, after)

    def buffer(self, rows: Sequence[Transition], capacity: int) -> ReplayBuffer:
        """Return a replay buffer with ``rows``."""
        device = self.settings.device
        made = ReplayBuffer(
            ReplaySettings(capacity, own_next=True, storage_device=device, device=device)
        )
        for row in rows:
            made.add(row)
        return made

    def evaluate(self, parts: LoadedCheckpoint) -> list[bool]:
        """Return whether the policy without noise solves each test episode."""
        policy = ActorPolicy(parts, self.device)
        return [self._solves(policy, _FIRST_TEST + n) for n in range(self.settings.tests)]

    def _solves(self, policy: ActorPolicy, seed: int) -> bool:
        observation = self.env.reset(seed)
        while True:
            step = self.env.step(policy.decide(observation, None).action)
            observation = step.observation
            if step.terminated or step.truncated:
                return bool(step.info.success)


def clone(case: Case, rows: Sequence[Transition]) -> LoadedCheckpoint:
    """Return the policy after behaviour cloning: squared error, cross-entropy of the gripper."""
    parts, settings = case.new_policy(), case.settings
    network = parts.network
    assert isinstance(network, GaussianActorNetwork)
    assert network.discrete_critic is not None
    preprocess = parts.preprocessor.on(case.device)
    buffer = case.buffer(rows, len(rows))
    generator = torch.Generator().manual_seed(case.seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.rate)
    for _ in range(settings.clone_updates):
        batch = buffer.sample(settings.batch, generator)
        inputs = preprocess(batch.observation)
        mean = network.actor.moments(network.encoder_actor(inputs)).mean.tanh()
        loss = functional.mse_loss(mean, batch.action[:, :_CONTINUOUS])
        command = batch.action[:, -1].round().long()
        loss = loss + functional.cross_entropy(network.discrete_critic(inputs), command)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return parts


@dataclass
class Learner:
    """Online learning of one seed in lockstep."""

    case: Case
    parts: LoadedCheckpoint
    algorithm: Sac
    online: ReplayBuffer
    offline: ReplayBuffer
    interventions: list[Transition]

    @classmethod
    def make(cls, case: Case) -> Learner:
        """Return a learner with a new policy and the demonstrations."""
        parts, settings = case.new_policy(), case.settings
        assert isinstance(parts.network, GaussianActorNetwork)
        hidden = CriticNetworkSettings([settings.width] * 2)
        algorithm = Sac(
            parts.network,
            SacSettings(
                actor_lr=settings.rate,
                critic_lr=settings.rate,
                discount=settings.discount,
                use_backup_entropy=False,
                num_critics=settings.critics,
                critic_network_kwargs=hidden,
                discrete_critic_network_kwargs=hidden,
                temperature_init=settings.temperature,
                utd_ratio=settings.utd,
                bc_weight=settings.cloning,
                bc_gripper_weight=settings.gripper_cloning,
            ),
            torch.Generator(case.device).manual_seed(case.seed),
        )
        longest = settings.steps + settings.episode_length
        offline = case.buffer(case.demonstrations, len(case.demonstrations) + longest)
        return cls(case, parts, algorithm, case.buffer([], longest), offline, [])

    def run(self) -> None:
        """Warm up on the demonstrations, then play and learn."""
        settings, case = self.case.settings, self.case
        warm = self._batches(OnlineOfflineMixer(self.offline, self.offline, settings.batch))
        for _ in range(settings.warm_up):
            self.algorithm.update(warm)
        batches = self._batches(OnlineOfflineMixer(self.online, self.offline, settings.batch))
        rule = InterventionSettings(
            InterventionSource.EXPERT,
            every=settings.intervene_every,
            after=settings.intervene_after,
        )
        expert = ExpertIntervention(case.env, rule)
        policy = ActorPolicy(self.parts, case.device)
        noise = torch.Generator().manual_seed(case.seed)
        began, episode, due = time.perf_counter(), 0, settings.every
        while len(self.online) < settings.steps:
            if time.perf_counter() - began > settings.limit_s:
                return
            self._play(episode, policy, expert, noise, batches)
            episode += 1
            if settings.every and len(self.online) >= due:
                due = len(self.online) + settings.every
                report(case.seed, case.evaluate(self.parts), steps=len(self.online))

    def _play(
        self,
        episode: int,
        policy: ActorPolicy,
        expert: ExpertIntervention,
        noise: torch.Generator,
        batches: Iterator[TransitionBatch],
    ) -> None:
        """Play one episode, with an update after every step."""
        observation = self.case.env.reset(_FIRST_EPISODE + 10_000 * self.case.seed + episode)
        expert.begin(episode)
        for step in range(self.case.settings.episode_length):
            action = policy.decide(observation, noise).action
            taken_over = expert.signal(step, None).action
            made = self.case.step(observation, action if taken_over is None else taken_over)
            self.online.add(made)
            if taken_over is not None:
                self.offline.add(made)
                self.interventions.append(made)
            observation = dict(made.next_observation)
            if len(self.online) > 1:
                self.algorithm.update(batches)
            if made.done or made.truncated:
                return

    def _batches(self, mixer: OnlineOfflineMixer) -> Iterator[TransitionBatch]:
        """Yield normalised batches."""
        preprocess = self.parts.preprocessor.on(self.case.device)
        generator = torch.Generator().manual_seed(self.case.seed + 1)
        while True:
            batch = mixer.sample(generator)
            batch.observation = preprocess(batch.observation)
            batch.next_observation = preprocess(batch.next_observation)
            yield batch


def report(seed: int, outcomes: Sequence[bool] = (), **numbers: float) -> None:
    """Print the progress of a seed; ``outcomes`` are those of the test episodes, in order."""
    line: dict[str, object] = {"seed": seed, **{k: round(v, 1) for k, v in numbers.items()}}
    if outcomes:
        line["success"] = round(sum(outcomes) / len(outcomes), 3)
        line["outcomes"] = "".join("01"[one] for one in outcomes)
    print(json.dumps(line), flush=True)


def run_seed(settings: Settings, seed: int) -> SeedResult:
    """Clone and learn online from the same demonstrations."""
    began = time.perf_counter()
    case = Case(settings, seed)
    report(seed, demonstrated_s=time.perf_counter() - began, transitions=len(case.demonstrations))
    cpu = time.process_time()
    cloned = clone(case, case.demonstrations)
    clone_cpu_s = time.process_time() - cpu
    of_cloned = case.evaluate(cloned)
    report(seed, of_cloned, cloned_s=time.perf_counter() - began)
    wall, cpu = time.perf_counter(), time.process_time()
    learner = Learner.make(case)
    learner.run()
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    of_online = case.evaluate(learner.parts)
    report(seed, of_online, online_s=time.perf_counter() - began, steps=len(learner.online))
    of_all = []
    if learner.interventions:
        all_rows = [*case.demonstrations, *learner.interventions]
        of_all = case.evaluate(clone(case, all_rows))
    case.env.close()
    result = SeedResult(
        seed,
        of_cloned,
        of_online,
        of_all,
        len(learner.online),
        len(learner.interventions),
        cpu_s,
        wall_s,
        clone_cpu_s,
    )
    print(seed_line(result), flush=True)
    return result


def seed_line(result: SeedResult) -> str:
    """Return one seed's result."""
    helped = ""
    if result.cloned_all:
        helped = (
            f", {result.intervention_steps} of them by the expert; cloned with those "
            f"{rate_text(result.cloned_all)}"
        )
    return (
        f"seed {result.seed}: cloned {rate_text(result.cloned)} ({result.clone_cpu_s:.0f} s CPU), "
        f"online {rate_text(result.online)} after {result.steps:,} steps{helped}; "
        f"{result.cpu_s:.0f} s CPU, {result.wall_s:.0f} s"
    )


def rate_text(outcomes: Sequence[bool]) -> str:
    """Return a success rate with its interval."""
    n, n_solved = len(outcomes), sum(outcomes)
    low, high = wilson_interval(n_solved, n) or (0.0, 1.0)
    return f"{n_solved / n:.1%} [{100 * low:.1f}, {100 * high:.1f}] n={n}"


def comparison(results: Sequence[SeedResult]) -> Paired:
    """Return the test episodes of all seeds by who solved them; A is cloned, B is online."""
    pairs = [pair for one in results for pair in zip(one.cloned, one.online, strict=True)]
    return Paired(
        both=pairs.count((True, True)),
        only_a=pairs.count((True, False)),
        only_b=pairs.count((False, True)),
        neither=pairs.count((False, False)),
    )


def main(words: Sequence[str]) -> int:
    """Run all seeds, ``--processes`` at a time, and compare."""
    parser = argparse.ArgumentParser(prog="python -m measurements online_gym_hil")
    defaults = Settings()
    for name, value in vars(defaults).items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(flag, type=type(value), default=value)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    flags = vars(parser.parse_args(words))
    seeds = range(flags["first_seed"], flags["first_seed"] + flags["seeds"])
    settings = Settings(**{name: flags[name] for name in vars(defaults)})
    print(json.dumps(vars(settings)), flush=True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # of the processes: one core each
        os.environ.setdefault(name, "1")
    with get_context("spawn").Pool(flags["processes"]) as pool:
        results = pool.starmap(run_seed, [(settings, seed) for seed in seeds], chunksize=1)
    counts = comparison(results)
    print(f"cloned: {rate_text([one for r in results for one in r.cloned])}")
    print(f"online: {rate_text([one for r in results for one in r.online])}")
    if helped := [one for r in results for one in r.cloned_all]:
        print(f"cloned with interventions: {rate_text(helped)}")
    print(f"online - cloned: {counts.difference:+.1%}, {counts}, p = {p_value(counts):.2g}")
    if flags["out"] is not None:
        flags["out"].write_text(json.dumps([vars(one) for one in results]))
    return 0
