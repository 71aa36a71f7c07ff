"""DeepSpeed with ZeRO stage 1."""

import itertools

import deepspeed
from torch.utils.data import DataLoader, DistributedSampler
from user_code import LOADER, OUT, SAVE_EVERY, Clips, Model, has_enough, report

deepspeed.init_distributed(dist_backend="gloo")
model = Model()
config = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "steps_per_print": 1 << 20,
}
engine, _, _, _ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config=config
)
clips = Clips()
loader = DataLoader(clips, sampler=DistributedSampler(clips, shuffle=False), **LOADER)
step = 0
for _ in itertools.count():
    for batch in loader:
        loss = engine(**batch)["loss"]
        engine.backward(loss)
        engine.step()
        step += 1
        report(step)
        if step % SAVE_EVERY == 0:
            engine.save_checkpoint(str(OUT), tag="last")
        if has_enough():
            break
    if has_enough():
        break
deepspeed.comm.barrier()
