"""Low-rank adapters (LoRA): LeRobot's ``--peft.*``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from proctor.errors import UsageError
from proctor.parsing import is_flow_list, parse_flow
from proctor.policies.lerobot.config.presets import ADAPTER_INITS, ADAPTER_METHOD
from proctor.settings import setting

ALL_LINEAR = "all-linear"
MOST_RANK = 16_384
_DEFAULT_RANK = 16


@dataclass
class PeftSettings:
    """Which layers get an adapter, and its size. If no field is set, all weights are trained."""

    help_group: ClassVar[str] = "LoRA adapters"

    target_modules: str | list[str] | None = setting(
        None,
        "layers that get an adapter: name suffixes, as [q_proj,v_proj], all-linear, or a "
        "regex of full names (default: the policy family's layers)",
    )
    full_training_modules: list[str] | None = setting(
        None, "layers that are trained and saved in full, as [action_head] (default: no layers)"
    )
    method_type: str | None = setting(
        None, f"adapter method; only LORA (default: {ADAPTER_METHOD})"
    )
    init_type: str | None = setting(
        None, f"initialisation of the adapter: {' or '.join(ADAPTER_INITS)} (default: peft's)"
    )
    r: int | None = setting(
        None, "rank of the LoRA matrices (default: 16)", least=1, most=MOST_RANK
    )
    lora_alpha: int | None = setting(
        None,
        "LoRA alpha: the adapter is scaled by lora_alpha / r (default: 8)",
        least=1,
        most=10**6,
    )

    @property
    def active(self) -> bool:
        """Whether an adapter is trained."""
        return self != PeftSettings()

    @property
    def rank(self) -> int:
        """The rank, with the default resolved."""
        return _DEFAULT_RANK if self.r is None else self.r

    @property
    def targets(self) -> str | list[str] | None:
        """The layers that get an adapter: a list of name suffixes, or a regex of full names.

        None: the layers that the policy family defines.
        """
        said = self.target_modules
        if isinstance(said, str) and is_flow_list(said):
            try:
                said = parse_flow(said)
            except ValueError as bad:
                raise UsageError(
                    f"--peft.target_modules: {bad} (names: [a, b])", code="flag.invalid-value"
                ) from None
        named = said is None or isinstance(said, str) or all(isinstance(n, str) and n for n in said)
        if said in ("", []) or not named:
            raise UsageError(
                f"--peft.target_modules: {said!r} names no layers (as [linear1,linear2])",
                code="flag.invalid-value",
            )
        return said

    def validate(self) -> None:
        """Refuse settings that do not define an adapter."""
        if not self.active:
            return
        if (self.method_type or ADAPTER_METHOD).upper() != ADAPTER_METHOD:
            raise UsageError(
                f"--peft.method_type={self.method_type}: only {ADAPTER_METHOD}, here",
                code="flag.unsupported",
            )
        if self.init_type not in (None, *ADAPTER_INITS):
            raise UsageError(
                f"--peft.init_type={self.init_type}: only {', '.join(ADAPTER_INITS)}; others "
                "change the base policy, which an adapter's checkpoint does not hold",
                code="flag.unsupported",
            )
        if isinstance(self.targets, str):
            try:
                re.compile(self.targets)
            except re.error as bad:
                raise UsageError(
                    f"--peft.target_modules: {self.targets!r} is no regex: {bad}",
                    code="flag.invalid-value",
                ) from None

    def to_lerobot(self) -> dict[str, Any] | None:
        """Return the section of LeRobot's train_config.json; None: no adapter."""
        if not self.active:
            return None
        return {
            "target_modules": self.targets,
            "full_training_modules": self.full_training_modules,
            "method_type": ADAPTER_METHOD,
            "init_type": self.init_type,
            "r": self.rank,
            "lora_alpha": self.lora_alpha,
        }
