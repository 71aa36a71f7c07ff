"""PyTorch Lightning."""

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader
from user_code import LOADER, OUT, SAVE_EVERY, WORLD, Clips, Model, has_enough, report


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch, _):
        return self.model(**batch)["loss"]

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Report(Callback):
    def on_train_batch_end(self, trainer, *_):
        report(trainer.global_step)
        if has_enough():
            trainer.should_stop = True


trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    num_nodes=WORLD,
    strategy="ddp",
    max_epochs=-1,
    logger=False,
    enable_progress_bar=False,
    callbacks=[Report(), ModelCheckpoint(OUT, every_n_train_steps=SAVE_EVERY)],
)
trainer.fit(Module(), DataLoader(Clips(), **LOADER))
