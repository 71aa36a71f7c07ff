"""Fully sharded data parallel (`fully_shard`), as in PyTorch's tutorial."""

import itertools

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from user_code import LOADER, OUT, RANK, SAVE_EVERY, WORLD, Clips, Model, has_enough, report

dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (WORLD,))
model = Model()
for layer in model.layers:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
clips = Clips()
loader = DataLoader(clips, sampler=DistributedSampler(clips, shuffle=False), **LOADER)
step = 0
for _ in itertools.count():
    for batch in loader:
        loss = model(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        report(step)
        if step % SAVE_EVERY == 0:
            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            state = get_model_state_dict(model, options=options)
            if RANK == 0:
                torch.save(state, OUT / "model.pt")
        if has_enough():
            break
    if has_enough():
        break
dist.barrier()
dist.destroy_process_group()
