"""What a run would be trained with (`--print-config`): refused where the run would be, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import torch

from fastswa import models
from fastswa.config import Config
from fastswa.methods import method_class
from fastswa.modelfile import read_facts
from fastswa.training.device import Compute, choose_compute
from fastswa.training.folder import RunFolder
from fastswa.training.fork import checkpoint_of
from fastswa.training.identity import is_own
from fastswa.training.iterates import announce
from fastswa.training.run import NewRun, Say, trainer_of
from fastswa.training.setup import load_data, network_options, with_data_defaults
from fastswa.whole import refuse_unwritable

_LOOKING_ON = Compute(torch.device("cpu"), "fp32", "eager", deterministic=False)


def shown(run: NewRun, say: Say) -> Config:
    """The configuration as it would be trained, but for a length that is measured.

    All that takes no training is tried, on the CPU. A published data set may still have to be fetched, so that what
    depends on its images is left to the run.
    """
    config = run.settings()
    choose_compute(config.device)
    if run.budget is not None:
        run.budget.refuse_fork(config)
    refuse_unwritable(run.path)
    own = is_own(config.data.source)
    if not own and config.data.source != "digits":
        _refuse_unknown(config, say)
        return run.config
    dataset = load_data(config)
    ready = with_data_defaults(config, dataset)
    # Pretrained weights are not fetched for that.
    trainer = trainer_of(ready, dataset, _LOOKING_ON, RunFolder(run.path), fresh=not ready.model.pretrained)
    run.forked(ready, trainer, say)
    announce(trainer, lambda line: None)
    return with_data_defaults(run.config, dataset) if own else run.config


def _refuse_unknown(config: Config, say: Say) -> None:
    """RequestError where method, network or beginning are none there are; no image is needed."""
    method_class(config.method.name)
    with torch.device("meta"):
        models.build(config.model.name, channels=3, classes=10, heads=config.model.heads, **network_options(config))
    if config.start.run is not None:
        checkpoint_of(config.start.run, say)
    if config.start.weights is not None:
        read_facts(Path(config.start.weights))
