# Stage 4: stage 1's sizes again on both datasets, from stage 3's weights; a bump in the learning
# rate ("1cycle": from min_lr to max_lr over the warmup, to lr over the cooldown), no masking.
#   clusterctl launch stage4 nodes.txt --data-path OpenVid1M-MiraData330k.csv \
#       --ckpt-path outputs/010-STDiT3-XL-2

_base_ = "stage1.py"

# Lambda's file writes {"random": 0.0}, which masks nothing but pays for masks.
mask_ratios = None

lr_schedule = "1cycle"
anneal_strategy = "cos"
warmup_steps = 400
cooldown_steps = 400
min_lr = 1.6e-5
max_lr = 6.4e-4
lr = 1.6e-4
epochs = 3  # as the text says; Lambda's file has 10
