"""Online learning beside behaviour cloning: gym_hil's pick with a random cube, sparse reward.

    python -m measurements online_gym_hil [--seeds=3] [--demonstrations=20] [--steps=3000]
    python -m measurements online_gym_hil --images --device=cuda --simulators=2 --processes=3
        --demonstrations=3 --intervene-every=2 --steps=12000 --limit-s=280 --out=pixels.jsonl

Each seed records its own scripted demonstrations, clones them with the policy's network, and trains
the same network online from scratch: SAC with half of each batch from the demonstrations and a
cloning term, with one update per environment step. All are evaluated without noise on the same
cubes, other than those of training. With ``--intervene-every=N`` the expert takes over in each N-th
episode. Its steps become demonstrations too, and a second clone learns from all of them. Images
are shifted at random for all three (DrQ). With ``--simulators=N`` each seed has N simulators in
processes of their own, which simulate while the network learns.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from measurements.gym_hil_players import EpisodeStart, Played, make_players
from proctor.benchmarks.gym_hil.benchmark import GymHil, GymHilConfig, ObsType
from proctor.config.sections.online import CriticNetworkSettings, SacSettings
from proctor.features import ACTION, Array, FeatureKind, Observation
from proctor.policies.gaussian_actor.config import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    GaussianActorConfig,
)
from proctor.policies.gaussian_actor.network import (
    DROPOUT,
    NOISE,
    GaussianActorNetwork,
    ObservationEncoder,
)
from proctor.policies.lerobot.processors.pipelines import default_pipelines
from proctor.policies.lerobot.processors.processors import Stats
from proctor.policies.runtime.chunk_policy import LoadedCheckpoint
from proctor.rl.algorithms.sac import Sac
from proctor.rl.environment.environments import SimOnlineEnv
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
_REPORT_S = 15.0
_RECENT = 30
"""Episodes without the expert whose success is reported."""


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
    size: int = 128
    """Side of the images."""
    shadow_map: int = 0
    """Side of the shadow map of images; gym_hil's own is 4096."""
    simulators: int = 0
    """Processes that simulate for one seed; 0: one simulator in the seed's process."""
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
    out: str = ""
    """File to which progress and results are appended, as lines of JSON."""


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
    """Simulators, demonstrations and networks of one seed."""

    def __init__(self, settings: Settings, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.device = torch.device(settings.device)
        torch.set_num_threads(1)
        kind = ObsType.PIXELS_AGENT_POS if settings.images else ObsType.STATE
        config = GymHilConfig(
            obs_type=kind,
            observation_height=settings.size,
            observation_width=settings.size,
            shadow_map=settings.shadow_map,
            episode_length=settings.episode_length,
        )
        benchmark = GymHil(config)
        env = SimOnlineEnv(benchmark, benchmark.tasks()[0])
        self.features, self.action_size = env.features, env.action.size
        self.players = make_players(config, settings.simulators)
        self.demonstrations = self._demonstrate()
        self.statistics = self._statistics()

    def close(self) -> None:
        """Close the simulators."""
        for player in self.players:
            player.close()

    def _demonstrate(self) -> list[Transition]:
        """Return the transitions of successful scripted demonstrations."""
        kept: list[Transition] = []
        number = n_kept = 0
        while n_kept < self.settings.demonstrations:
            episode = self._demonstration(_FIRST_DEMONSTRATION + 1000 * self.seed + number)
            number += 1
            if episode[-1].reward > 0:
                kept += episode
                n_kept += 1
        return kept

    def _demonstration(self, seed: int) -> list[Transition]:
        player = self.players[0]
        player.begin(EpisodeStart(seed, expert_from=0, noise=self.settings.noise))
        before, episode = player.receive(), []
        while not before.ended:
            player.step(None)
            after = player.receive()
            episode.append(transition(before, after))
            before = after
        return episode

    def _statistics(self) -> Stats:
        """Return the range of the demonstrations' states, a little wider, and of actions."""
        stats: Stats = {}
        for key, feature in self.features.items():
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
        config = config.with_features(self.features, self.action_size)
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
        policy = BatchedPolicy(parts, self.device)
        waiting = deque(range(self.settings.tests))
        solved = [False] * self.settings.tests
        playing: dict[int, tuple[int, Played]] = {}
        """Player -> its test and where it stands."""
        while waiting or playing:
            begun = {}
            for number, player in enumerate(self.players):
                if number not in playing and waiting:
                    begun[number] = waiting.popleft()
                    player.begin(EpisodeStart(_FIRST_TEST + begun[number]))
            for number, test in begun.items():
                playing[number] = test, self.players[number].receive()
            actions = policy.act([played.observation for _, played in playing.values()], None)
            for number, action in zip(playing, actions, strict=True):
                self.players[number].step(action)
            for number, (test, _) in list(playing.items()):
                played = self.players[number].receive()
                playing[number] = test, played
                if played.ended:
                    solved[test] = played.success
                    del playing[number]
        return solved


def transition(before: Played, after: Played) -> Transition:
    """Return the step between two observations."""
    assert after.action is not None
    return Transition(
        before.observation,
        after.action,
        after.reward,
        after.observation,
        after.terminated,
        after.truncated,
    )


class BatchedPolicy:
    """Chooses the actions of several simulators in one pass of the network."""

    def __init__(self, parts: LoadedCheckpoint, device: torch.device) -> None:
        assert isinstance(parts.network, GaussianActorNetwork)
        self._network, self._device = parts.network, device
        self._keys = tuple(parts.config.input_features)
        self._preprocess = parts.preprocessor.on(device)
        self._postprocess = parts.postprocessor.on(torch.device("cpu"))

    def act(
        self, observations: Sequence[Observation], generator: torch.Generator | None
    ) -> list[Array]:
        """Return actions with noise of ``generator``; None: the Gaussian's mode."""
        inputs = {}
        for key in self._keys:
            rows = torch.from_numpy(np.stack([one[key] for one in observations]))
            rows = rows.to(self._device, non_blocking=True)
            inputs[key] = rows.float() / 255 if rows.dtype == torch.uint8 else rows
        draws = {}
        if generator is not None:
            noise = torch.randn(len(observations), _CONTINUOUS, generator=generator)
            draws[NOISE] = noise.to(self._device, non_blocking=True)
        with torch.inference_mode():
            chosen = self._network.chunk(self._preprocess(inputs), draws)[:, 0].cpu()
            motion = self._postprocess({ACTION: chosen[:, :_CONTINUOUS]})[ACTION]
        return list(torch.cat([motion, chosen[:, _CONTINUOUS:]], 1).numpy())


def clone(case: Case, rows: Sequence[Transition]) -> LoadedCheckpoint:
    """Return the policy after behaviour cloning: squared error, cross-entropy of the gripper."""
    parts, settings = case.new_policy(), case.settings
    network = parts.network
    assert isinstance(network, GaussianActorNetwork)
    assert network.discrete_critic is not None
    preprocess = parts.preprocessor.on(case.device)
    buffer = case.buffer(rows, len(rows))
    generator = torch.Generator().manual_seed(case.seed)
    encoder = network.encoder_actor
    optimizer = torch.optim.Adam(network.parameters(), lr=settings.rate)
    for _ in range(settings.clone_updates):
        batch = buffer.sample(settings.batch, generator)
        inputs = preprocess(batch.observation)
        masks = [dropout_masks(encoder, len(batch.action), case.device) for _ in range(2)]
        mean = network.actor.moments(encoder(inputs, None, masks[0])).mean.tanh()
        loss = functional.mse_loss(mean, batch.action[:, :_CONTINUOUS])
        command = batch.action[:, -1].round().long()
        values = network.discrete_critic(inputs, None, masks[1])
        loss = loss + functional.cross_entropy(values, command)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return parts


def dropout_masks(
    encoder: ObservationEncoder, rows: int, device: torch.device
) -> dict[str, torch.Tensor] | None:
    """Return masks of the image embeddings, as online learning has them; None without images."""
    if not encoder.cameras:
        return None
    shape = len(encoder.cameras), rows, encoder.embedding_dim
    keep = torch.empty(shape, device=device).bernoulli_(1 - DROPOUT).div_(1 - DROPOUT)
    return dict(zip(encoder.cameras, keep, strict=True))


@dataclass
class Learner:
    """Online learning of one seed in lockstep."""

    case: Case
    parts: LoadedCheckpoint
    algorithm: Sac
    online: ReplayBuffer
    offline: ReplayBuffer
    interventions: list[Transition] = field(default_factory=list)
    episodes: int = 0
    """Episodes begun."""
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """Success of the newest episodes that the policy ended."""

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
        return cls(case, parts, algorithm, case.buffer([], longest), offline)

    def run(self) -> None:
        """Warm up on the demonstrations, then play and learn."""
        settings, players = self.case.settings, self.case.players
        began = time.perf_counter()
        warm = self._batches(OnlineOfflineMixer(self.offline, self.offline, settings.batch))
        for _ in range(settings.warm_up):
            self.algorithm.update(warm)
        batches = self._batches(OnlineOfflineMixer(self.online, self.offline, settings.batch))
        policy = BatchedPolicy(self.parts, self.case.device)
        noise = torch.Generator().manual_seed(self.case.seed)
        for player in players:
            player.begin(self._next_episode())
        playing = [player.receive() for player in players]
        reported = time.perf_counter()
        while len(self.online) < settings.steps:
            now = time.perf_counter()
            if now - began > settings.limit_s:
                return
            if now - reported > _REPORT_S:
                reported = now
                self._report(now - began)
            actions = policy.act([one.observation for one in playing], noise)
            for player, action in zip(players, actions, strict=True):
                player.step(action)
            if len(self.online) > 1:
                for _ in players:
                    self.algorithm.update(batches)
            playing = self._receive(playing)

    def _next_episode(self) -> EpisodeStart:
        settings, number = self.case.settings, self.episodes
        self.episodes += 1
        is_helped = settings.intervene_every and self.episodes % settings.intervene_every == 0
        seed = _FIRST_EPISODE + 10_000 * self.case.seed + number
        return EpisodeStart(seed, settings.intervene_after if is_helped else None)

    def _receive(self, before: Sequence[Played]) -> list[Played]:
        """Store the steps of all players; return where they stand, in new episodes if ended."""
        players = self.case.players
        after = [player.receive() for player in players]
        for old, new in zip(before, after, strict=True):
            made = transition(old, new)
            self.online.add(made)
            if new.by_expert:
                self.offline.add(made)
                self.interventions.append(made)
            elif new.ended:
                self.recent.append(new.success)
        ended = [number for number, one in enumerate(after) if one.ended]
        for number in ended:
            players[number].begin(self._next_episode())
        for number in ended:
            after[number] = players[number].receive()
        return after

    def _report(self, passed_s: float) -> None:
        report(
            self.case.settings,
            self.case.seed,
            learning_s=passed_s,
            steps=len(self.online),
            episodes=self.episodes,
            expert_steps=len(self.interventions),
            recent_success=sum(self.recent) / max(1, len(self.recent)),
        )

    def _batches(self, mixer: OnlineOfflineMixer) -> Iterator[TransitionBatch]:
        """Yield normalised batches."""
        preprocess = self.parts.preprocessor.on(self.case.device)
        generator = torch.Generator().manual_seed(self.case.seed + 1)
        while True:
            batch = mixer.sample(generator)
            batch.observation = preprocess(batch.observation)
            batch.next_observation = preprocess(batch.next_observation)
            yield batch


def report(settings: Settings, seed: int, outcomes: Sequence[bool] = (), **numbers: float) -> None:
    """Print the progress of a seed; ``outcomes`` are those of the test episodes, in order."""
    line: dict[str, object] = {"seed": seed, **{k: round(v, 2) for k, v in numbers.items()}}
    if outcomes:
        line["success"] = round(sum(outcomes) / len(outcomes), 3)
        line["outcomes"] = "".join("01"[one] for one in outcomes)
    print(json.dumps(line), flush=True)
    append(settings.out, line)


def append(path: str, line: dict[str, Any]) -> None:
    """Append a line of JSON; what was measured before a run is killed is then kept."""
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def run_seed(settings: Settings, seed: int) -> SeedResult:
    """Clone and learn online from the same demonstrations."""
    began = time.perf_counter()
    case = Case(settings, seed)
    report(
        settings,
        seed,
        demonstrated_s=time.perf_counter() - began,
        transitions=len(case.demonstrations),
    )
    cpu = time.process_time()
    cloned = clone(case, case.demonstrations)
    clone_cpu_s = time.process_time() - cpu
    of_cloned = case.evaluate(cloned)
    report(settings, seed, of_cloned, cloned_s=time.perf_counter() - began)
    wall, cpu = time.perf_counter(), time.process_time()
    learner = Learner.make(case)
    learner.run()
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    of_online = case.evaluate(learner.parts)
    report(
        settings, seed, of_online, online_s=time.perf_counter() - began, steps=len(learner.online)
    )
    of_all = []
    if learner.interventions:
        all_rows = [*case.demonstrations, *learner.interventions]
        of_all = case.evaluate(clone(case, all_rows))
        report(settings, seed, of_all, cloned_all_s=time.perf_counter() - began)
    case.close()
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
    flags = vars(parser.parse_args(words))
    seeds = range(flags["first_seed"], flags["first_seed"] + flags["seeds"])
    settings = Settings(**{name: flags[name] for name in vars(defaults)})
    print(json.dumps(vars(settings)), flush=True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # of the processes: one core each
        os.environ.setdefault(name, "1")
    results: list[SeedResult] = []
    with ProcessPoolExecutor(flags["processes"], get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_seed, settings, seed) for seed in seeds]):
            results.append(done.result())
            append(settings.out, {"result": vars(results[-1])})
    counts = comparison(results)
    print(f"cloned: {rate_text([one for r in results for one in r.cloned])}")
    print(f"online: {rate_text([one for r in results for one in r.online])}")
    if helped := [one for r in results for one in r.cloned_all]:
        print(f"cloned with interventions: {rate_text(helped)}")
    print(f"online - cloned: {counts.difference:+.1%}, {counts}, p = {p_value(counts):.2g}")
    return 0
