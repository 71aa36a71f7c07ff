# Images only (rows of the manifest with num_frames 1): adapts PixArt's weights to this VAE and to
# aspect ratios before any video.
#   clusterctl launch image nodes.txt --data-path images.csv \
#       --ckpt-path pretrained_models/PixArt-Sigma-XL-2-2K-MS.pth

_base_ = "_recipe.py"

# Batch sizes of stage 1's images.
bucket_config = {
    "144p": {1: (1.0, 475)},
    "256": {1: (1.0, 297)},
    "240p": {1: (1.0, 297)},
    "360p": {1: (1.0, 141)},
    "512": {1: (1.0, 141)},
    "480p": {1: (1.0, 89)},
    "720p": {1: (0.3, 36)},
    "1024": {1: (0.3, 36)},
    "1080p": {1: (0.1, 5)},
    "2048": {1: (0.05, 5)},
}

lr = 1e-4
