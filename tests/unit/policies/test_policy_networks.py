"""The networks: variants that the golden data does not hold, and losses that can be trained on."""

from __future__ import annotations

import pytest
import torch
from small_policies import IMAGE, STATE, small_act, small_diffusion
from torch import nn

from proctor.policies.act.network import Act, TemporalEnsemble
from proctor.policies.blocks.resnet import FrozenBatchNorm2d, ResNet, feature_map_size, group_norm
from proctor.policies.blocks.rgb_encoder import crop
from proctor.policies.blocks.schedule import NoiseSchedule
from proctor.policies.diffusion.network import Diffusion
from proctor.policies.runtime.network import NoiseSpec, draw_noise


def training_batch(config, n_obs_steps=None):
    torch.manual_seed(1)
    length = getattr(config, "chunk_size", None) or config.horizon
    time = () if n_obs_steps is None else (n_obs_steps,)
    is_pad = torch.zeros(2, length, dtype=torch.bool)
    is_pad[1, -2:] = True
    return {
        STATE: torch.randn(2, *time, 4),
        IMAGE: torch.randn(2, *time, 3, 64, 64),
        "action": torch.randn(2, length, 3),
        "action_is_pad": is_pad,
    }


def drawn(network):
    return draw_noise(network.loss_draws, torch.Generator().manual_seed(0), 2)


@pytest.mark.parametrize("kind", [NoiseSpec.NORMAL, NoiseSpec.UNIFORM])
def test_what_a_network_declares_is_drawn_by_rows_and_by_the_generator_alone(kind):
    declared = {"first": (kind, (3,)), "second": (NoiseSpec.NORMAL, ())}
    found, again = (draw_noise(declared, torch.Generator().manual_seed(7), 5) for _ in range(2))
    assert {name: tuple(values.shape) for name, values in found.items()} == {
        "first": (5, 3),
        "second": (5,),
    }
    assert all(torch.equal(found[name], again[name]) for name in declared)
    assert (found["first"].min() >= 0) == (kind is NoiseSpec.UNIFORM)


@pytest.mark.parametrize("height", [64, 65, 96, 97, 224, 480])
def test_feature_maps_have_the_size_we_compute(height):
    with torch.device("meta"):  # shapes, and nothing drawn
        found = ResNet("resnet18", group_norm)(torch.zeros(1, 3, height, 40))
    assert found.shape[1:] == (512, *feature_map_size(height, 40))


def test_dilation_keeps_the_last_stage_twice_as_fine_with_the_same_weights():
    with torch.device("meta"):
        plain = ResNet("resnet18", FrozenBatchNorm2d)
        dilated = ResNet("resnet18", FrozenBatchNorm2d, dilate_last=True)
        image = torch.zeros(1, 3, 96, 128)
    dilated.load_state_dict(plain.state_dict(), assign=True)
    assert plain(image).shape == (1, 512, 3, 4)
    assert dilated(image).shape == (1, 512, 6, 8)


def test_frozen_batch_norm_is_batch_norm_in_eval_mode():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(5).eval()
    for tensor in (norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var):
        tensor.uniform_(0.5, 2)
    frozen = FrozenBatchNorm2d(5)
    frozen.load_state_dict({k: v for k, v in norm.state_dict().items() if "num_batches" not in k})
    x = torch.randn(2, 5, 4, 4)
    torch.testing.assert_close(frozen(x), norm(x))
    assert not list(frozen.parameters())


def frozen_resnet():
    """Return a small picture's ResNet with norms that do something."""
    torch.manual_seed(0)
    network = ResNet("resnet18", FrozenBatchNorm2d)
    for norm in network.modules():
        if isinstance(norm, FrozenBatchNorm2d):
            for values in (norm.weight, norm.running_var):
                values.uniform_(0.5, 1.5)
            for values in (norm.bias, norm.running_mean):
                values.normal_()
    return network


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_frozen_norms_in_the_weights_are_the_same_network_and_learn_the_same(layout):
    network = frozen_resnet().double()
    picture = torch.randn(2, 3, 48, 40).double().contiguous(memory_format=layout)
    found = {}
    for learning in (True, False):
        network.train(learning).zero_grad()
        maps = network(picture)
        (maps**2).mean().backward()
        found[learning] = [maps.detach(), *(weight.grad.clone() for weight in network.parameters())]
    for at_once, one_by_one in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(at_once, one_by_one, rtol=1e-9, atol=1e-12)


def test_a_convolution_that_was_changed_is_asked_itself():
    class Changed(nn.Conv2d):
        def forward(self, x):
            return 2 * super().forward(x)

    network = frozen_resnet().train()
    picture = torch.randn(1, 3, 48, 48)
    with torch.no_grad():
        before = network(picture)
        network.layer4[1].conv2.__class__ = Changed
        assert not torch.equal(network(picture), before)


def test_resnet34_has_torchvisions_blocks():
    with torch.device("meta"):
        weights = ResNet("resnet34", FrozenBatchNorm2d).state_dict()
    names = {key.rsplit(".", 1)[0] for key in weights}
    assert {"layer1.2.conv2", "layer2.3.bn1", "layer3.5.conv1", "layer4.2.bn2"} <= names


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"pre_norm": True},
        {"use_vae": False},
        {"replace_final_stride_with_dilation": True},
        {"feedforward_activation": "gelu"},
        {"vision_backbone": "resnet34"},
    ],
    ids=str,
)
def test_act_learns_from_its_loss(changes):
    network = Act(small_act(dropout=0.0, **changes))
    loss, parts = network.loss(training_batch(network.config), drawn(network))
    loss.backward()
    untouched = [k for k, p in network.named_parameters() if p.grad is None]
    assert untouched == []
    assert parts["l1_loss"] <= loss


def test_act_ignores_padded_actions():
    network = Act(small_act(dropout=0.0))
    batch = training_batch(network.config)
    noise = torch.zeros(2, network.config.latent_dim)
    before, _ = network.loss(batch, {"latent": noise})
    batch["action"][1, -2:] = 100.0
    after, _ = network.loss(batch, {"latent": noise})
    assert torch.equal(before, after)


def test_act_dropout_acts_in_training_only():
    network = Act(small_act(dropout=0.5))
    batch = training_batch(network.config)
    noise = torch.zeros(2, network.config.latent_dim)
    assert network.loss(batch, {"latent": noise})[0] != network.loss(batch, {"latent": noise})[0]
    network.eval()
    assert network.loss(batch, {"latent": noise})[0] == network.loss(batch, {"latent": noise})[0]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_separate_rgb_encoder_per_camera": False, "use_group_norm": True},
        {"prediction_type": "sample", "use_film_scale_modulation": False},
        {"crop_shape": [48, 40]},
        {"resize_shape": [40, 48], "crop_ratio": 0.8},
        {"do_mask_loss_for_padding": True},
    ],
    ids=str,
)
def test_diffusion_learns_from_its_loss(changes):
    network = Diffusion(small_diffusion(**changes))
    loss, _ = network.loss(training_batch(network.config, n_obs_steps=2), drawn(network))
    loss.backward()
    assert [k for k, p in network.named_parameters() if p.grad is None] == []


def test_diffusion_masks_padding_only_where_told():
    for masks in (True, False):
        network = Diffusion(small_diffusion(do_mask_loss_for_padding=masks, kernel_size=1)).eval()
        batch = training_batch(network.config, n_obs_steps=2)
        noise, time = torch.randn(2, 8, 3), torch.tensor([0.05, 0.55])
        changed = noise.clone()
        changed[1, -2:] = 9.0
        network.unet.forward = lambda actions, t, cond: torch.zeros_like(actions)
        before, after = (
            network.loss(batch, {"noise": n, "time": time})[0] for n in (noise, changed)
        )
        assert torch.equal(before, after) == masks


def test_crops_lie_where_the_draws_say_and_in_the_middle_without_any():
    rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    image = torch.stack([rows, columns, rows + columns])[None].expand(3, 3, 64, 64)
    places = torch.tensor([[0.0, 0.0], [0.5, 0.25], [0.9999, 0.9999]])
    found = crop(image, [32, 24], places)
    assert found.shape == (3, 3, 32, 24)
    assert found[:, :2, 0, 0].tolist() == [[0, 0], [16, 10], [32, 40]]
    for one in found:
        torch.testing.assert_close(one[2], one[0] + one[1])
        assert one[:, -1, -1].tolist()[:2] == [one[0, 0, 0] + 31, one[1, 0, 0] + 23]
    assert crop(image, [32, 24], None)[0, :2, 0, 0].tolist() == [16, 20]


def test_random_crops_are_for_training():
    network = Diffusion(small_diffusion(crop_shape=[48, 40], use_group_norm=True))
    batch = training_batch(network.config, n_obs_steps=2)
    draws = drawn(network)
    elsewhere = {**draws, "crop": 1 - draws["crop"]}
    assert network.loss(batch, draws)[0] != network.loss(batch, elsewhere)[0]
    network.eval()
    assert network.loss(batch, draws)[0] == network.loss(batch, elsewhere)[0]
    assert "crop" not in Diffusion(small_diffusion(crop_shape=[48, 40], crop_is_random=False)).draws


@pytest.mark.parametrize("kind", ["DDPM", "DDIM"])
@pytest.mark.parametrize("predicts", ["epsilon", "sample"])
@pytest.mark.parametrize("betas", ["squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid"])
def test_an_oracle_denoises_to_the_clean_actions(kind, predicts, betas):
    """With the true noise (or the true actions) as prediction, sampling ends at the actions."""
    config = small_diffusion(
        noise_scheduler_type=kind,
        prediction_type=predicts,
        beta_schedule=betas,
        num_train_timesteps=100,
    )
    schedule = NoiseSchedule(config)
    torch.manual_seed(0)
    clean = torch.rand(2, 8, 3) * 2 - 1
    x = torch.randn(2, 8, 3)
    for step in schedule.steps:
        noise = (x - step.signal * clean) / step.noise_std
        predicted = noise if predicts == "epsilon" else clean
        x = schedule.denoise(step, x, predicted, torch.randn_like(x))
    torch.testing.assert_close(x, clean, rtol=1e-3, atol=1e-3)


def test_temporal_ensembling_is_the_weighted_mean_of_all_predictions():
    torch.manual_seed(0)
    chunk_size, coeff = 4, 0.3
    chunks = torch.randn(9, chunk_size, 2)
    ensemble = TemporalEnsemble(coeff, chunk_size)
    for t in range(9):
        found = ensemble.update(chunks[t])
        first = max(0, t - chunk_size + 1)
        predictions = torch.stack([chunks[s, t - s] for s in range(first, t + 1)])
        weights = torch.exp(-coeff * torch.arange(len(predictions)))
        expected = (predictions * weights[:, None]).sum(0) / weights.sum()
        torch.testing.assert_close(found, expected)
