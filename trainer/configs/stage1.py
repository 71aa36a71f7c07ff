# Stage 1: mainly 144p to 360p, from PixArt-Sigma's weights (temporal branches start as identity).
#   clusterctl launch stage1 nodes.txt --data-path OpenVid1M.csv \
#       --ckpt-path pretrained_models/PixArt-Sigma-XL-2-2K-MS.pth

_base_ = "_recipe.py"

# frames: (share, batch size per GPU); the share may be (share, share of long enough clips)
bucket_config = {
    "144p": {1: (1.0, 475), 51: (1.0, 51), 102: ((1.0, 0.33), 27), 204: ((1.0, 0.1), 13), 408: ((1.0, 0.1), 6)},
    "256": {1: (0.4, 297), 51: (0.5, 20), 102: ((0.5, 0.33), 10), 204: ((0.5, 0.1), 5), 408: ((0.5, 0.1), 2)},
    "240p": {1: (0.3, 297), 51: (0.4, 20), 102: ((0.4, 0.33), 10), 204: ((0.4, 0.1), 5), 408: ((0.4, 0.1), 2)},
    "360p": {1: (0.2, 141), 51: (0.15, 8), 102: ((0.15, 0.33), 4), 204: ((0.15, 0.1), 2), 408: ((0.15, 0.1), 1)},
    "512": {1: (0.1, 141)},
    "480p": {1: (0.1, 89)},
    "720p": {1: (0.05, 36)},
    "1024": {1: (0.05, 36)},
    "1080p": {1: (0.1, 5)},
    "2048": {1: (0.1, 5)},
}  # fmt: skip

# A fifth of the clips are trained with frames given (Open-Sora's own stage 1: 0.205).
mask_ratios = {
    "random": 0.05,
    "intepolate": 0.005,  # upstream's spelling
    "quarter_random": 0.005,
    "quarter_head": 0.005,
    "quarter_tail": 0.005,
    "quarter_head_tail": 0.005,
    "image_random": 0.025,
    "image_head": 0.05,
    "image_tail": 0.025,
    "image_head_tail": 0.025,
}
