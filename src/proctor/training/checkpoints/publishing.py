"""Uploads a trained policy to the Hugging Face Hub, with a model card.

``--policy.push_to_hub --policy.repo_id=user/name`` uploads the best checkpoint when the training
ends, or the last one without evaluations. ``--policy.eval_results=ORG/DATASET:TASK`` adds its
success rate as a result file of the Hub. Access is checked before the training starts. A failed
upload is a warning; the checkpoint is kept.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.config.flags.parsing import decode
from proctor.config.lerobot.training import UPLOAD_SETTINGS
from proctor.errors import HubUnreachable, ProctorError, UsageError, strip_control_codes
from proctor.permissions import permission_flags
from proctor.policies.lerobot.checkpoint.location import read_json
from proctor.policies.lerobot.tokenizer.tokenizer import FILES
from proctor.report.claims.card import card_of
from proctor.report.claims.eval_results import FOLDER, HubTask, eval_results_text
from proctor.report.run.run import load_run
from proctor.runs.training import read_training
from proctor.system.hub.repositories import HUB_ID, hub_api, uploading
from proctor.system.hub.uploads import exactly, named_few, other_files, without_local_paths
from proctor.trained_starts import TRAINED_STARTS_FILE
from proctor.training.checkpoints.card import PolicyCard, find_evaluation, render_card
from proctor.training.checkpoints.folder import TrainingFolder
from proctor.training.checkpoints.saving import AVERAGED, BEST, PRETRAINED, Checkpoints

_TOKENIZER = ("added_tokens.json", "chat_template.json", "chat_template.jinja", "merges.txt")
_SMALL = ("config.json", "train_config.json", "policy_*.json", "adapter_config.json")
"""Files that may name local paths."""
_UPLOADED = [
    *(*_SMALL, "*.safetensors", "model.safetensors.index.json", "preprocessor_config.json"),
    TRAINED_STARTS_FILE,
    *(*FILES, *_TOKENIZER, "vocab.json", *(f"*/{name}" for name in (*FILES, *_TOKENIZER))),
]
"""The files of a checkpoint."""
_REPLACED = ["*.json", "*.safetensors", TRAINED_STARTS_FILE]
"""Files of an earlier policy, which are removed."""


@dataclass
class Publication:
    """Settings of the upload; ``push_to_hub`` enables it."""

    push_to_hub: bool = False
    repo_id: str | None = None
    private: bool | None = None
    tags: list[str] = field(default_factory=list)
    license: str | None = None
    eval_results: str | None = None

    @property
    def repo(self) -> str:
        """The id of the Hub repository."""
        assert self.repo_id is not None
        return self.repo_id

    @property
    def flags(self) -> str:
        """The settings as flags."""
        values = {
            "push_to_hub": "true",
            "repo_id": self.repo_id,
            "private": None if self.private is None else str(self.private).lower(),
            "tags": ",".join(self.tags) or None,
            "license": self.license,
            "eval_results": self.eval_results,
        }
        return " ".join(
            shlex.quote(f"--policy.{name}={value}") for name, value in values.items() if value
        )


def parse_publication(settings: Mapping[str, Any]) -> Publication | None:
    """Parse the upload flags; None if no upload is requested."""
    given = {
        n: settings[n] for n in UPLOAD_SETTINGS if settings.get(n) not in (None, "null", "none")
    }
    publication = decode(Publication, given, "policy.")
    if not publication.push_to_hub:
        return None
    if not publication.repo_id:
        raise UsageError(
            "--policy.push_to_hub needs --policy.repo_id=USER/NAME",
            code="flag.missing",
        )
    if not HUB_ID.fullmatch(publication.repo_id):
        raise UsageError(
            f"--policy.repo_id: {strip_control_codes(publication.repo_id, 100)!r} is not a Hub id "
            "such as me/policy",
            code="hub.invalid-id",
        )
    if publication.eval_results is not None:
        HubTask.parse(publication.eval_results, "--policy.eval_results")
    if str(settings.get("save_checkpoint", "true")).lower() == "false":
        raise UsageError(
            "--policy.push_to_hub uploads a checkpoint; leave out --save_checkpoint=false",
            code="flag.conflict",
        )
    return publication


def check_publication(publication: Publication, base: str | None) -> None:
    """Check access to the Hub before the training; ``base`` is the base of an adapter."""
    if base is not None and not HUB_ID.fullmatch(base):
        raise UsageError(
            f"--policy.push_to_hub: the adapter's base {base} is not on the Hub; upload it first, "
            "and give it as --policy.path=USER/NAME",
            code="hub.unpublished-base",
        )
    api = hub_api()
    with _hub_errors(publication.repo):
        from huggingface_hub.errors import LocalTokenNotFoundError

        try:
            api.whoami()
        except LocalTokenNotFoundError:
            raise UsageError(
                "--policy.push_to_hub needs a Hub token; log in (hf auth login) or set HF_TOKEN",
                code="hub.not-logged-in",
            ) from None


@contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    try:
        with uploading(repo):
            yield
    except HubUnreachable:
        raise HubUnreachable(
            f"the Hub is unreachable for the upload of {repo}; leave out --policy.push_to_hub, and "
            "upload later with --resume"
        ) from None


def publish(folder: TrainingFolder, publication: Publication) -> list[str]:
    """Upload the policy of a finished training; return the result as lines for the user."""
    chosen = checkpoint_to_publish(folder.checkpoints())
    if chosen is None:
        return ["warning: nothing was uploaded: there is no checkpoint"]
    repos = {PRETRAINED: publication.repo}
    if (chosen / AVERAGED).is_dir():
        repos[AVERAGED] = f"{publication.repo}-ema"  # as LeRobot calls it
    lines = []
    for name, repo in repos.items():
        card = PolicyCard(folder.path, chosen / name, repo)
        try:
            address = _upload(card, publication)
        except ProctorError as error:
            output = shlex.quote(f"--output_dir={folder.path}")
            record = read_training(folder.path)
            given = {} if record is None else record.given
            kept = permission_flags(given, but=("output_dir", *UPLOAD_SETTINGS))
            again = f"proctor train --resume {output} {publication.flags}{kept}"
            lines.append(
                f"warning: {repo} was not uploaded: {strip_control_codes(str(error))}; "
                f"the policy is in {chosen / name}; to upload it: {again}"
            )
        else:
            lines.append(f"uploaded: {address} (step {int(chosen.name):,})")
            if others := other_files(card.folder, _UPLOADED):
                lines.append(f"note: no files of a checkpoint, not uploaded: {named_few(others)}")
            lines += _upload_result(card, publication)
    return lines


def checkpoint_to_publish(checkpoints: Checkpoints) -> Path | None:
    """Return the best checkpoint by its evaluation, or else the newest."""
    best = checkpoints.folder / BEST
    return best.resolve() if best.is_dir() else checkpoints.newest()


def _upload(policy: PolicyCard, publication: Publication) -> str:
    """Upload the policy's folder to its repository, and return the address."""
    card = render_card(policy, publication.tags, publication.license)
    api = hub_api()
    with _hub_errors(policy.repo):
        address = str(api.create_repo(policy.repo, private=publication.private, exist_ok=True))
        message = f"The policy of step {int(policy.folder.parent.name)}"
        cleaned = _without_local_paths(policy.folder)
        api.upload_folder(
            repo_id=policy.repo,
            folder_path=policy.folder,
            commit_message=message,
            allow_patterns=_UPLOADED,
            ignore_patterns=exactly(list(cleaned)),
            delete_patterns=_REPLACED,
        )
        for name, text in {**cleaned, "README.md": card}.items():
            api.upload_file(
                path_or_fileobj=text.encode(),
                path_in_repo=name,
                repo_id=policy.repo,
                commit_message=message if name in cleaned else "The policy's card",
            )
    return address


def _without_local_paths(folder: Path) -> dict[str, str]:
    """Return the text of those JSON files that name places on this machine, without these."""
    cleaned = {}
    for file in (file for pattern in _SMALL for file in folder.glob(pattern)):
        content = read_json(file)
        if (shown := without_local_paths(content)) != content:
            cleaned[file.name] = json.dumps(shown, indent=4)
    return cleaned


def _upload_result(policy: PolicyCard, publication: Publication) -> list[str]:
    """Upload the policy's success rate as a result file of the Hub; return lines for the user."""
    record = read_training(policy.run)
    if publication.eval_results is None or record is None:
        return []
    found = find_evaluation(policy, averaged=record.plays_averages)
    if found is None:
        return [f"note: {policy.repo} has no {FOLDER}: these weights were not evaluated"]
    task = HubTask.parse(publication.eval_results)
    path = f"{FOLDER}/{task.task_id}.yaml"
    try:
        text = eval_results_text(card_of(load_run(found.run)), task, remark=found.bias)
        with _hub_errors(policy.repo):
            hub_api().upload_file(
                path_or_fileobj=text.encode(),
                path_in_repo=path,
                repo_id=policy.repo,
                commit_message="The policy's evaluation result",
            )
    except ProctorError as error:
        said = strip_control_codes(str(error))
        return [f"warning: {path} was not uploaded to {policy.repo}: {said}"]
    return [f"uploaded: {path} ({found.row})"]
