"""ColossalAI's Booster with its plugin for DistributedDataParallel: the ZeRO plugins need a GPU."""

import itertools

import colossalai
import torch
import torch.distributed as dist
from colossalai.booster import Booster
from colossalai.booster.plugin import TorchDDPPlugin
from torch.utils.data import DataLoader, DistributedSampler
from user_code import LOADER, OUT, SAVE_EVERY, Clips, Model, has_enough, report

colossalai.launch_from_torch()
booster = Booster(plugin=TorchDDPPlugin())
clips = Clips()
loader = DataLoader(clips, sampler=DistributedSampler(clips, shuffle=False), **LOADER)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, _, loader, _ = booster.boost(model, optimizer, dataloader=loader)
step = 0
for _ in itertools.count():
    for batch in loader:
        loss = model(**batch)["loss"]
        booster.backward(loss, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        report(step)
        if step % SAVE_EVERY == 0:
            booster.save_model(model, str(OUT / "model.pt"))
        if has_enough():
            break
    if has_enough():
        break
dist.barrier()
