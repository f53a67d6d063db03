"""python examples/lightning_callback.py: fast-SWA as a Lightning callback, on the embedded digits.

`FastSWA` averages and nothing else: the learning rate stays whatever the module or another callback makes it.
`CyclicRate` is such another callback, with the paper's schedule. Needs `pip install lightning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch.nn.functional as F
from plain_loop import digits, error, network
from torch import Tensor, nn, optim
from torch.utils.data import DataLoader

from fastswa import AveragedWeights, CyclicCosine


class FastSWA(pl.Callback):
    """The mean of a module's weights from epoch `start` on, taken `every` so many epochs (fractions too).

    After training `averaged.module` is the averaged LightningModule, its batch-norm statistics refreshed by a pass over
    the training batches. `forward(module, batch)` says how to pass a batch where it is not (images, labels).
    The average is saved in checkpoints and goes on where training does. For one process.
    """

    def __init__(
        self, start: float, every: float = 1.0, forward: Callable[[nn.Module, Any], Any] | None = None
    ) -> None:
        self.start, self.every, self.forward = start, every, forward
        self.averaged: AveragedWeights | None = None
        self._restored: dict[str, Any] | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.averaged = AveragedWeights(pl_module, start=self.start, every=self.every)
        if self._restored is not None:
            self.averaged.load_state_dict(self._restored)
            self._restored = None

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if math.isfinite(trainer.num_training_batches):
            self._update(trainer.current_epoch + (batch_idx + 1) / trainer.num_training_batches)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._update(trainer.current_epoch + 1)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.averaged is None or self.averaged.count == 0:
            return

        def forward(module: nn.Module, batch: Any) -> None:
            batch = pl_module.transfer_batch_to_device(batch, pl_module.device, 0)
            if self.forward is not None:
                self.forward(module, batch)
            else:
                module(batch[0] if isinstance(batch, tuple | list) else batch)

        self.averaged.refresh(trainer.train_dataloader, forward)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.averaged is None else self.averaged.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict or None

    def _update(self, epoch: float) -> None:
        assert self.averaged is not None
        self.averaged.update(epoch)


class CyclicRate(pl.Callback):
    """The paper's learning rate on the trainer's optimisers, set before every step."""

    def __init__(self, length: float, period: float, cycle: float) -> None:
        self.settings = {"length": length, "period": period, "cycle": cycle}
        self.schedules: list[CyclicCosine] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.schedules = [CyclicCosine(optimiser, **self.settings) for optimiser in trainer.optimizers]

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        for schedule in self.schedules:
            schedule.step(trainer.current_epoch + batch_idx / trainer.num_training_batches)


class Digits(pl.LightningModule):
    """The network of plain_loop.py; knows nothing of averages or schedules."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def configure_optimizers(self) -> optim.Optimizer:
        return optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)


def train(epochs: int = 30, labels: int = 300, seed: int = 0, **options: Any) -> dict[str, float]:
    """Train once; the test error of the last iterate and of the average, in percent."""
    pl.seed_everything(seed, verbose=False)
    images, x_test, y_test = digits(labels)
    loader = DataLoader(images, batch_size=50, shuffle=True, drop_last=True)
    length, cycle = epochs * 2 / 3, epochs / 6
    average = FastSWA(start=length - cycle, every=cycle / 10)
    rate = CyclicRate(length=length, period=length + cycle, cycle=cycle)
    module = Digits()
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[rate, average],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, loader)
    assert average.averaged is not None
    return {
        "last iterate": error(module.cpu(), x_test, y_test),
        f"fast-SWA of {average.averaged.count}": error(average.averaged.module.cpu(), x_test, y_test),
    }


if __name__ == "__main__":
    for name, value in train().items():
        print(f"{name:<16} {value:5.2f}% wrong")
