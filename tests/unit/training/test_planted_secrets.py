"""Secrets in every variable and file: no upload or download through the real client sends one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.loopback_hub import TOKEN, LoopbackHub, Request, loopback_hub, serving

from .builders import RUN, SMALL_ACT, words

pytest.importorskip("torch")
pytest.importorskip("huggingface_hub")

from proctor.cli import main

VARIABLES = (
    "PROCTOR_API_KEY",
    "WANDB_API_KEY",
    "HUGGING_FACE_HUB_TOKEN",
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "OPENAI_API_KEY",
    "RAY_TOKEN",
    "USER",
    "LOGNAME",
    "HOSTNAME",
    "SSH_AUTH_SOCK",
    "MY_PASSWORD",
)
OF_HOME = (
    ".netrc",
    ".git-credentials",
    ".ssh/id_ed25519",
    ".aws/credentials",
    ".config/wandb/settings",
    ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens",
    ".env",
)
OF_A_FOLDER = (".env", "meta/.env", "meta/secret.txt", "notes/.git-credentials", "outputs.log")
OF_A_CHECKPOINT = (".env", "optimizer.txt", "wandb.json", "notes/key.pem")


class Secrets:
    """Plants a different secret at each place, and finds them in what was sent."""

    def __init__(self) -> None:
        self.planted: dict[bytes, str] = {}

    def new(self, place: str) -> str:
        text = f"planted_{len(self.planted)}_secret"
        self.planted[text.encode()] = place
        return text

    def into(self, folder: Path, names: tuple[str, ...]) -> None:
        for name in names:
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            secret = self.new(str(file))
            machines = f"machine localhost login me password {secret}\n"
            machines += f"machine 127.0.0.1 login me password {secret}\n"
            file.write_text(machines if name == ".netrc" else secret)

    def found_in(self, *heard: bytes) -> list[str]:
        return [place for text, place in self.planted.items() if any(text in h for h in heard)]


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Secrets:
    made = Secrets()
    home = tmp_path / made.new("the name of the home folder")
    made.into(home, OF_HOME)
    for name in ("HOME", "NETRC"):
        monkeypatch.setenv(name, str(home / ".netrc" if name == "NETRC" else home))
    for name in VARIABLES:
        monkeypatch.setenv(name, made.new(name))
    monkeypatch.chdir(home)
    return made


def uploaded(hub: LoopbackHub) -> list[bytes]:
    """Return all that the Hub got: requests without the token that it may have, and files."""
    headers = [sent.replace(f"Bearer {TOKEN}".encode(), b"") for sent in hub.sent]
    files = [name.encode() + held for files in hub.commits for name, held in files.items()]
    assert headers
    return [*headers, *files]


def test_no_push_sends_a_secret(
    numbers: Path, tmp_path: Path, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    demos = Path.home() / "demos"
    shutil.copytree(numbers, demos)
    secrets.into(demos, OF_A_FOLDER)
    with loopback_hub(tmp_path, monkeypatch) as hub:
        assert main(["data", "push", str(demos), "me/demos"]) == 0
        assert "meta/info.json" in hub.commits[-1]
        assert secrets.found_in(*uploaded(hub)) == []
        assert not any(TOKEN.encode() in held for held in uploaded(hub))
    run = Path.home() / "run"
    more = {"policy.push_to_hub": "true", "policy.repo_id": "me/policy", "steps": 2}
    push = ["--policy.push_to_hub=true", "--policy.repo_id=me/policy"]
    with loopback_hub(tmp_path, monkeypatch) as hub:
        assert main(["train", *words(demos, run, SMALL_ACT, RUN, more)]) == 0
        assert "model.safetensors" in hub.commits[-1]
        assert secrets.found_in(*uploaded(hub)) == []
        secrets.into(run / "checkpoints/last/pretrained_model", OF_A_CHECKPOINT)
        again = ["--resume", f"--output_dir={run}", "--steps=4", *push]
        assert main(["train", *again]) == 0
        assert secrets.found_in(*uploaded(hub)) == []
        assert not any(TOKEN.encode() in held for held in uploaded(hub))


@pytest.mark.parametrize("verb", ["pull", "eval"])
def test_no_host_but_the_hub_is_sent_anything_of_the_user(
    verb: str, numbers: Path, tmp_path: Path, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = LoopbackHub()
    held.hold(numbers)
    held.commits[-1]["config.json"] = b'{"type": "act"}'
    other = LoopbackHub(commits=held.commits)
    with loopback_hub(tmp_path, monkeypatch, held) as hub, serving(other) as address:
        address = address.replace("127.0.0.1", "localhost")

        def redirect(request: Request, path: str) -> bool:
            return "/resolve/" in path and request.reply(302, Location=address + request.path)

        hub.hook = redirect
        if verb == "pull":
            assert main(["data", "pull", "me/it", f"--root={tmp_path / 'pulled'}"]) == 0
        else:
            flags = ["--policy.path=me/it", "--env.type=fake", f"--output_dir={tmp_path / 'run'}"]
            assert main(["eval", *flags]) == 2  # there are no weights
        assert other.sent
        assert secrets.found_in(*uploaded(hub), *other.sent) == []
        assert not any(TOKEN.encode() in sent for sent in other.sent)
        assert not any(b"authorization" in sent.lower() for sent in other.sent)
        assert os.environ["HOME"].encode() not in b"".join(other.sent)
