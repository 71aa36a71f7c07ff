# Stage 6: stage 3's sizes again on both datasets, from stage 5's weights; half of stage 4's bump,
# no masking. Lambda's run of it crashed at step 2900; stage 7 continued from there.
#   clusterctl launch stage6 nodes.txt --data-path OpenVid1M-MiraData330k.csv \
#       --ckpt-path outputs/013-STDiT3-XL-2

_base_ = ["stage3.py", "_bump.py"]

mask_ratios = None
max_lr = 3.2e-4
lr = 0.8e-4
epochs = 1  # as the text says; Lambda's file has 10
