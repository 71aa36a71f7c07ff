"""Hugging Face accelerate, as in its quick tour."""

import itertools

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from user_code import LOADER, OUT, SAVE_EVERY, Clips, Model, has_enough, report

accelerator = Accelerator(cpu=True)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Clips(), **LOADER))
step = 0
for _ in itertools.count():
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        report(step)
        if step % SAVE_EVERY == 0 and accelerator.is_main_process:
            accelerator.save(accelerator.unwrap_model(model).state_dict(), OUT / "model.pt")
        if has_enough():
            break
    if has_enough():
        break
accelerator.wait_for_everyone()
accelerator.end_training()
