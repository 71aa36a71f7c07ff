# Stage 5: stage 2's sizes again on both datasets, from stage 4's weights; bump, no masking.
#   clusterctl launch stage5 nodes.txt --data-path OpenVid1M-MiraData330k.csv \
#       --ckpt-path outputs/012-STDiT3-XL-2

_base_ = ["stage2.py", "_bump.py"]

mask_ratios = None
epochs = 1  # as the text says; Lambda's file has 10
