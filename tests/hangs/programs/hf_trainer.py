"""Hugging Face's Trainer."""

from transformers import Trainer, TrainerCallback, TrainingArguments
from user_code import LOADER, OUT, SAVE_EVERY, Clips, Model, has_enough, report


class Report(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        report(state.global_step)
        control.should_training_stop = has_enough()


arguments = TrainingArguments(
    output_dir=str(OUT),
    use_cpu=True,
    max_steps=1 << 20,
    per_device_train_batch_size=2,
    save_steps=SAVE_EVERY,
    save_total_limit=2,
    report_to=[],
    disable_tqdm=True,
    logging_steps=10,
    dataloader_num_workers=LOADER["num_workers"],
    dataloader_prefetch_factor=LOADER.get("prefetch_factor"),
    dataloader_persistent_workers=LOADER.get("persistent_workers", False),
    dataloader_pin_memory="pin_memory" in LOADER,
)
Trainer(Model(), arguments, train_dataset=Clips(), callbacks=[Report()]).train()
