# Moving handwritten digits: the real pipeline with numbers small enough for two CPU cores.
# Clips come from `python -m trainer.data.digits`; pixels are the latents, one channel of luma.

bucket_config = {"16px": {8: (1.0, 16)}}  # 8 frames of 16 x 16; 16 clips per process and step
num_workers = 0  # a worker of its own would import torch once more for clips this small
dataset = dict(
    data_path="digits/digits.csv",
    resize="area",  # nearest neighbours read 0.945 of scans right; bilinear blurs, 0.895
    cache_decoded_mb=64,  # 2,000 clips are 12 MB: each process decodes a clip once, not every epoch
)

# Patches of 8 frames of 4 x 4 pixels: a clip is 16 tokens. 1.6 M parameters. STDiT3 tells a token's
# frame only by its distance to others (RoPE), and 660 steps are too few to learn where a digit is
# in each: with 4 frames a token and a width of 128, which takes longer, seeds ended between 0.77
# and 0.96 digits and 0.82 and 1.00 directions right; with 2 frames of 8 x 8 pixels at 0.45, 0.50.
model = dict(
    type="STDiT3",
    hidden_size=160,  # with 128 the strokes are blurred: 0.73 digits
    depth=2,
    num_heads=8,  # with 2 heads the digit was not learned in this time
    mlp_ratio=2.0,
    patch_size=(8, 4, 4),
    input_sq_size=16,  # the clips' own size, so neighbouring patches are one unit apart
    pred_sigma=False,
)
vae = dict(type="identity", channels=1)
# Made for the run from the captions' words. Its layers start small, so an untrained encoder keeps
# which word it read; random features of the usual size blur it.
text_encoder = dict(
    type="tiny_t5", model_max_length=6, d_model=64, num_layers=2, initializer_factor=0.05
)
# Most training times lie near pure noise: only there does the model need the caption. With the
# usual loc 0, scale 1 the same number of steps gave 0.58 digits and 0.89 directions right, so 0.83
# and 1.00 (2 x 16 clips a step, 700 steps).
scheduler = dict(
    type="rflow",
    sample_method="logit-normal",
    loc=1.5,
    scale=1.4,
    num_sampling_steps=20,
    cfg_scale=2.5,
)

dtype = "fp32"  # bf16 is slower on a CPU
lr = 4e-3  # at 7e-3 the loss falls as fast, but digits come out right half as often
lr_schedule = "cosine"
warmup_steps = 40
min_lr = 1e-4
adam_betas = (0.9, 0.99)
weight_decay = 0.01
grad_clip = 1.0
ema_decay = 0.99
ema_warmup = True
# 660 steps: 0.98, 1.00, 0.99 digits and 1.00 directions right (seeds 42, 1, 2; 160 videos each);
# 450 steps: 0.70 and 0.83 digits.
max_steps = 660
epochs = 1000  # max_steps ends the run

seed = 42
log_every = 10
ckpt_every = 330
sample = dict(
    num_frames=8,
    image_size=(16, 16),
    fps=8.0,  # of the clips, given to the model
    batch_size=40,
    seed=1024,
)
