"""Train a head on a frozen encoder, to measure what the encoder has learned in pretraining."""

from __future__ import annotations

from pathlib import Path

from lmtransfer.commands.finetune import check_settings as check_settings
from lmtransfer.commands.finetune import transfer
from lmtransfer.config.settings import ProbeSettings


def run(settings: ProbeSettings) -> Path:
    """Train and write a run directory; ``probe`` and ``finetune`` differ only in their defaults."""
    return transfer(settings, command="probe")
