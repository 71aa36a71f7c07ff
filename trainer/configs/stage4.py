# Stage 4: stage 1's sizes again on both datasets, from stage 3's weights; bump, no masking.
#   clusterctl launch stage4 nodes.txt --data-path OpenVid1M-MiraData330k.csv \
#       --ckpt-path outputs/010-STDiT3-XL-2

_base_ = ["stage1.py", "_bump.py"]

mask_ratios = None  # Lambda's file has {"random": 0.0}, which masks nothing but pays for masks
epochs = 3  # as the text says; Lambda's file has 10
