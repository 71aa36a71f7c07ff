# Stage 5: stage 2's sizes again on both datasets, from stage 4's weights; bump, no masking.
#   clusterctl launch stage5 nodes.txt --data-path OpenVid1M-MiraData330k.csv \
#       --ckpt-path outputs/012-STDiT3-XL-2

_base_ = "stage2.py"

mask_ratios = None

lr_schedule = "1cycle"
anneal_strategy = "cos"
warmup_steps = 400
cooldown_steps = 400
min_lr = 1.6e-5
max_lr = 6.4e-4
lr = 1.6e-4
epochs = 1  # as the text says; Lambda's file has 10
