"""The reward classifier's network, with the parameter names of LeRobot's checkpoints.

    camera ─▶ ResNet10 (frozen, shared) ─▶ spatial embedding ─▶ Linear, LayerNorm, tanh ─┐
    camera ─▶ ...                                                                        ├─▶ head
    head: Linear, LayerNorm, ReLU, Linear ─▶ logits

LeRobot computes everything before the head without gradients, so only the head is trained and the
projections stay random. ``train_projections`` trains them too. B is the batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from proctor.features import REWARD
from proctor.policies.blocks.layers import SpatialEmbedding
from proctor.policies.blocks.resnet10 import ResNet10, load_resnet10
from proctor.policies.reward_classifier.config import GRID, RewardClassifierConfig
from proctor.policies.runtime.network import Network, shared_names


class RewardClassifier(Network):
    """Probability of success of images; attribute names are those of LeRobot's checkpoints."""

    takes_history = False

    def __init__(self, config: RewardClassifierConfig) -> None:
        super().__init__()
        self.config = config
        sizes, width = config.resnet10_sizes, config.latent_dim
        self.encoder = ResNet10(sizes).requires_grad_(False)
        pooled = config.image_embedding_pooling_dim
        self.encoders = nn.ModuleDict(
            {
                key.replace(".", "_"): nn.Sequential(
                    self.encoder,
                    SpatialEmbedding(sizes.out_channels, *GRID, pooled),
                    nn.Dropout(config.dropout_rate),
                    nn.Linear(sizes.out_channels * pooled, width),
                    nn.LayerNorm(width),
                    nn.Tanh(),
                )
                for key in config.cameras
            }
        )
        self.classifier_head = nn.Sequential(
            nn.Linear(width * config.num_cameras, config.hidden_dim),
            nn.Dropout(config.dropout_rate),
            nn.LayerNorm(config.hidden_dim),
            nn.ReLU(),
            nn.Linear(config.hidden_dim, 1 if self.is_binary else config.num_classes),
        )
        self.tied = shared_names(self)

    @property
    def is_binary(self) -> bool:
        """Whether there is one logit, of success."""
        return self.config.num_classes == 2

    def load_pretrained(self) -> None:
        """Load the published weights of the image encoder."""
        flag = "--reward_model.model_file"
        load_resnet10(self.encoder, self.config.model_name, self.config.model_file, flag)

    def hidden_states(self, images: Mapping[str, Tensor]) -> Tensor:
        """Return the projections of all cameras, [B, latent_dim * num_cameras]."""
        trained = torch.is_grad_enabled() and self.config.train_projections
        parts = []
        for key in self.config.cameras:
            layers = self.encoders[key.replace(".", "_")]
            assert isinstance(layers, nn.Sequential)
            with torch.no_grad():
                features = self.encoder(images[key])
            with torch.set_grad_enabled(trained):
                parts.append(layers[1:](features))
        return torch.cat(parts, dim=-1)

    def logits(self, images: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of normalised ``images``: [B], or [B, num_classes]."""
        logits: Tensor = self.classifier_head(self.hidden_states(images))
        return logits.squeeze(-1) if self.is_binary else logits

    def probabilities(self, images: Mapping[str, Tensor]) -> Tensor:
        """Return the probability of success [B], or of every class [B, num_classes]."""
        logits = self.logits(images)
        return logits.sigmoid() if self.is_binary else logits.softmax(-1)

    def predict_reward(self, images: Mapping[str, Tensor], threshold: float = 0.5) -> Tensor:
        """Return the reward [B]: 1 above ``threshold``, else 0; or the most probable class."""
        found = self.probabilities(images)
        return (found > threshold).float() if self.is_binary else found.argmax(-1).float()

    def chunk(self, inputs: dict[str, Tensor], draws: dict[str, Tensor]) -> Tensor:
        """Return the probabilities as one step: [B, 1, 1], or [B, 1, num_classes]."""
        found = self.probabilities(inputs)
        return found[:, None, None] if self.is_binary else found[:, None]

    def loss(
        self, batch: dict[str, Tensor], draws: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the cross-entropy with ``next.reward`` [B, 1], and the accuracy in per cent."""
        logits, labels = self.logits(batch), batch[REWARD][:, 0]
        if self.is_binary:
            loss = F.binary_cross_entropy_with_logits(logits, labels)
            predicted = (logits.sigmoid() > 0.5).float()
        else:
            loss = F.cross_entropy(logits, labels.long())
            predicted = logits.argmax(-1).float()
        accuracy = 100 * (predicted == labels).float().mean()
        return loss, {"accuracy": accuracy.detach()}

    def compiled_modules(self) -> list[nn.Module]:
        """Return the image encoder and the head."""
        return [self.encoder, self.classifier_head]
