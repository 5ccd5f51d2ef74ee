"""Image encoders start from ImageNet weights: found, downloaded, given, or one line why not."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from tests.unit.training.builders import (  # noqa: E402
    RUN,
    SMALL_ACT,
    SMALL_DIFFUSION,
    words,
    write_seen,
)
from torch import nn  # noqa: E402

from proctor.cli import main  # noqa: E402
from proctor.policies.blocks import pretrained_resnet  # noqa: E402
from proctor.policies.blocks.resnet import ResNet  # noqa: E402
from proctor.system.files import sha256_of  # noqa: E402

ONE = RUN | {"steps": 1, "save_freq": 1, "num_workers": 0}
FROZEN = {"policy.optimizer_lr_backbone": 0}
VQBET = {
    "policy.type": "vqbet",
    "policy.crop_shape": "null",
    "policy.gpt_input_dim": 16,
    "policy.gpt_output_dim": 16,
    "policy.gpt_hidden_dim": 16,
    "policy.gpt_n_head": 2,
    "policy.gpt_n_layer": 1,
    "policy.n_obs_steps": 2,
    "policy.device": "cpu",
}
LAST = "checkpoints/last/pretrained_model"


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> Path:
    return write_seen(tmp_path_factory.mktemp("data") / "seen", side=32)


def made_up(name: str = "resnet18") -> dict[str, torch.Tensor]:
    """Return weights with torchvision's names: those of an old file, without batch counters."""
    torch.manual_seed(3)
    network = ResNet(name, nn.BatchNorm2d)
    stored = {
        key: torch.rand_like(value) + 0.5 if "running" in key else torch.randn_like(value) * 0.05
        for key, value in network.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    return stored | {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with a made-up file under torchvision's name: the hash is the file's own."""
    folder = tmp_path_factory.mktemp("site")
    torch.save(made_up(), folder / "weights.pth")
    digest = sha256_of(folder / "weights.pth")
    return (folder / "weights.pth").rename(folder / f"resnet18-{digest[:8]}.pth")


@pytest.fixture
def cache(site, tmp_path, monkeypatch) -> Path:
    """Torch's cache, empty; no network."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(pretrained_resnet, "HOST", "http://127.0.0.1:9")
    monkeypatch.setitem(pretrained_resnet.FILES, "resnet18", site.name)
    return tmp_path / "torch/hub/checkpoints"


@pytest.fixture
def served(site, monkeypatch) -> Iterator[list[str]]:
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *given):
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(site.parent))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(pretrained_resnet, "HOST", f"http://127.0.0.1:{server.server_address[1]}")
    yield asked
    server.shutdown()
    server.server_close()


def train(seen: Path, run: Path, *settings: dict, expect: int = 0) -> None:
    assert main(["train", *words(seen, run, *settings, ONE)]) == expect


def test_stock_act_downloads_the_weights_once_and_trains_from_them(
    seen, tmp_path, cache, served, site
):
    train(seen, tmp_path / "run", SMALL_ACT, FROZEN)
    trained = load_file(tmp_path / "run" / LAST / "model.safetensors")
    for key, value in made_up().items():
        if not key.startswith("fc."):
            torch.testing.assert_close(trained[f"model.backbone.{key}"], value, rtol=0, atol=1e-6)
    assert served == [f"/{site.name}"]
    assert [path.name for path in cache.iterdir()] == [site.name]
    train(seen, tmp_path / "again", SMALL_ACT)  # from torch's cache
    assert len(served) == 1
    config = json.loads((tmp_path / "run" / LAST / "config.json").read_text())
    assert config["pretrained_backbone_weights"] == "ResNet18_Weights.IMAGENET1K_V1"
    assert "backbone_file" not in config  # LeRobot refuses unknown keys


@pytest.mark.parametrize("small", [SMALL_DIFFUSION, VQBET], ids=["diffusion", "vqbet"])
def test_numbered_children_get_the_weights_of_their_names(
    seen, tmp_path, cache, site, small, capsys
):
    run = tmp_path / "run"
    off = {"optimizer.lr": 0, "use_policy_training_preset": "false", "optimizer.type": "sgd"}
    off |= {"optimizer.weight_decay": 0, "scheduler.type": "constant_with_warmup"}
    train(seen, run, small, off, {"policy.backbone_file": site})
    trained = load_file(run / LAST / "model.safetensors")
    (conv,) = [key for key in trained if key.endswith("backbone.0.weight")][:1]
    assert torch.equal(trained[conv], made_up()["conv1.weight"])
    deep = conv.replace("backbone.0.weight", "backbone.7.1.conv2.weight")
    assert torch.equal(trained[deep], made_up()["layer4.1.conv2.weight"])
    train(seen, tmp_path / "no", small, {"policy.use_group_norm": "true"}, expect=2)
    assert "--policy.use_group_norm" in capsys.readouterr().err


def test_a_checkpoint_with_such_weights_is_resumed_and_tuned_without_the_file(
    seen, tmp_path, cache, site
):
    run = tmp_path / "run"
    train(seen, run, SMALL_ACT, {"policy.backbone_file": site})
    assert main(["train", "--resume", f"--output_dir={run}", "--steps=2"]) == 0
    path = {"policy.path": run / LAST, "policy.device": "cpu"}
    train(seen, tmp_path / "tuned", path)
    assert not cache.exists()


def test_a_safetensors_file_is_read_too(seen, tmp_path, cache):
    save_file(made_up(), tmp_path / "mine.safetensors")
    train(
        seen, tmp_path / "run", SMALL_ACT, {"policy.backbone_file": tmp_path / "mine.safetensors"}
    )


def test_without_a_network_one_line_says_which_file_to_put_where(
    seen, tmp_path, cache, site, capsys
):
    train(seen, tmp_path / "run", SMALL_ACT, expect=2)
    (said,) = capsys.readouterr().err.splitlines()
    assert f"put {site.name} into {cache}" in said
    assert "--policy.backbone_file=FILE" in said
    assert "--policy.pretrained_backbone_weights=null" in said
    assert not (tmp_path / "run").exists()


REFUSED = [
    ({"policy.vision_backbone": "resnet34"}, "ResNet34_Weights.IMAGENET1K_V1"),
    ({"policy.pretrained_backbone_weights": "ResNet18_Weights.V9"}, "ResNet18_Weights.IMAGENET1K"),
    ({"policy.backbone_file": "no.pth"}, "there is no file no.pth"),
    ({"policy.backbone_file": "{bad}"}, "not a file of weights"),
    ({"policy.backbone_file": "{other}"}, "belongs to another network: layer1.2"),
    ({"policy.backbone_file": "{list}"}, "state dict"),
    ({"policy.backbone_file": "{site}", "policy.pretrained_backbone_weights": "null"}, "needs"),
]


@pytest.mark.parametrize(("flags", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_weights_that_do_not_fit_are_one_line(seen, tmp_path, cache, site, capsys, flags, told):
    files = {name: tmp_path / f"{name}.pth" for name in ("bad", "other", "list")} | {"site": site}
    files["bad"].write_bytes(b"no weights")
    torch.save(made_up("resnet34"), files["other"])
    torch.save([1, 2], files["list"])
    given = {name: value.format(**files) for name, value in flags.items()}
    train(seen, tmp_path / "run", SMALL_ACT, given, expect=2)
    (said,) = capsys.readouterr().err.splitlines()
    assert told in said
    assert not (tmp_path / "run").exists()


def test_a_damaged_file_in_the_cache_is_said(seen, tmp_path, cache, site, capsys):
    cache.mkdir(parents=True)
    (cache / site.name).write_bytes(site.read_bytes()[:-1])
    train(seen, tmp_path / "run", SMALL_ACT, expect=2)
    (said,) = capsys.readouterr().err.splitlines()
    assert f"{cache / site.name} is damaged" in said


def test_a_policy_without_cameras_downloads_nothing(numbers_only, tmp_path, cache):
    assert main(["train", *words(numbers_only, tmp_path / "run", SMALL_ACT, ONE)]) == 0
    assert not cache.exists()


@pytest.fixture
def numbers_only(tmp_path) -> Path:
    from tests.unit.training.builders import write_numbers

    return write_numbers(tmp_path / "numbers")


def test_torchvisions_names_and_hashes_are_known():
    assert pretrained_resnet.FILES == {
        "resnet18": "resnet18-f37072fd.pth",
        "resnet34": "resnet34-b627a593.pth",
    }
