# What Lambda's seven stages share: Open-Sora 1.2 on OpenVid and MiraData, 192 H100, about 6 days.
# Numbers are those of the tutorial; where its text and the files beside it differ, the text counts.

dataset = dict(type="VariableVideoTextDataset", transform_name="resize_crop")
num_workers = 8

model = dict(
    type="STDiT3-XL/2",
    from_pretrained=None,  # --ckpt-path
    qk_norm=True,
    freeze_y_embedder=True,
)
vae = dict(
    type="OpenSoraVAE_V1_2", from_pretrained="hpcai-tech/OpenSora-VAE-v1.2", micro_frame_size=17
)
text_encoder = dict(type="t5", from_pretrained="DeepFloyd/t5-v1_1-xxl", model_max_length=300)
scheduler = dict(type="rflow", use_timestep_transform=True, sample_method="logit-normal")
grad_checkpoint = "auto"  # theirs: True, which computes a third more than it must
compile = True

dtype = "bf16"
plugin = "zero2"
lr = 1.6e-4
warmup_steps = 400
epochs = 5
grad_clip = 1.0
weight_decay = 0.01  # Open-Sora itself trains without
adam_eps = 1e-15
ema_decay = 0.99

seed = 42
outputs = "outputs"  # Lambda's files say outputs_speedrun, and wandb = True
log_every = 10
ckpt_every = 100
