# Stage 7: stage 6 again from the weights it reached when it crashed. The tutorial's stage7.py is
# not in Lambda's repository; the text says "same config as stage 6", 3 epochs.
#   clusterctl launch stage7 nodes.txt --data-path OpenVid1M-MiraData330k.csv \
#       --ckpt-path outputs/015-STDiT3-XL-2
# With --load instead of --ckpt-path the run continues without a new warmup.

_base_ = "stage6.py"

epochs = 3
