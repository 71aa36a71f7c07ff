"""resize="torch": upstream's pixels, by its own operations on whole clips and by a formula of ours."""

import av
import numpy as np
import pytest
import torch
from PIL import Image

from tests.trainer.data.clips import write_clip
from trainer.data.video.clip import read_window
from trainer.data.video.container import ClipError
from trainer.data.video.decode import Decoder, Window
from trainer.data.video.upstream_resize import cover

X264 = {"preset": "veryfast", "threads": "1", "crf": "10"}
FRAMES = 6
# Source and bucket: shrinks, grows, an odd rest to crop on either side, equal sizes.
SIZES = [
    ((96, 128), (32, 48)),
    ((96, 128), (47, 30)),
    ((96, 128), (150, 130)),
    ((96, 128), (96, 128)),
    ((130, 74), (51, 99)),
]


def picture(index: int, height: int, width: int) -> np.ndarray:
    noise = np.random.default_rng(index)
    rough = noise.integers(16, 236, (-(-height // 8), -(-width // 8)))
    return np.kron(rough, np.ones((8, 8)))[:height, :width]


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    return {
        size: write_clip(
            folder / f"{size[0]}.mp4",
            FRAMES,
            *size,
            picture=lambda k, s=size: picture(k, *s),
            **X264,
        )
        for size in {source for source, _ in SIZES}
    }


def frames_of(path) -> np.ndarray:
    """Full-size RGB [T, H, W, C] as PyAV gives it."""
    with av.open(str(path)) as container:
        return np.stack([f.to_ndarray(format="rgb24") for f in container.decode(video=0)])


def read(path, window: Window) -> np.ndarray:
    out = np.full((3, window.frames, window.height, window.width), np.nan, np.float32)
    read_window(str(path), window, out)
    return out


def by_formula(image_HWC: np.ndarray, to: tuple[int, int]) -> np.ndarray:
    """Bilinear in float64: pixel centres at halves, edges repeated, no antialiasing."""
    for axis, size in enumerate(to):
        have = image_HWC.shape[axis]
        at = np.clip((np.arange(size) + 0.5) * have / size - 0.5, 0, None)
        low = np.floor(at).astype(int)
        share = np.expand_dims(at - low, tuple(a for a in range(3) if a != axis))
        high = np.minimum(low + 1, have - 1)
        image_HWC = (1 - share) * image_HWC.take(low, axis) + share * image_HWC.take(high, axis)
    return image_HWC


@pytest.mark.parametrize(("source", "bucket"), SIZES)
def test_pixels_are_upstreams_bit_by_bit(clips, source, bucket):
    """Upstream resizes the whole clip at once, in a loader worker with one torch thread."""
    torch.set_num_threads(1)
    clip_TCHW = torch.from_numpy(frames_of(clips[source])).permute(0, 3, 1, 2)
    height, width = clip_TCHW.shape[-2:]
    if bucket[0] / height > bucket[1] / width:
        size = bucket[0], round(width * (bucket[0] / height))
    else:
        size = round(height * (bucket[1] / width)), bucket[1]
    whole = torch.nn.functional.interpolate(
        clip_TCHW.float() / 255.0, size=size, mode="bilinear", align_corners=False
    )
    top, left = int((size[0] - bucket[0]) / 2.0), int((size[1] - bucket[1]) / 2.0)
    want = whole[..., top : top + bucket[0], left : left + bucket[1]].sub(0.5).div(0.5)
    for start, interval in [(0, 1), (1, 2)]:
        got = read(clips[source], Window(start, 3, interval, *bucket, FRAMES, "torch"))
        np.testing.assert_array_equal(got, want[start::interval][:3].permute(1, 0, 2, 3).numpy())


@pytest.mark.parametrize(("source", "bucket"), SIZES)
def test_pixels_are_those_of_the_formula(clips, source, bucket):
    got = read(clips[source], Window(2, 1, 1, *bucket, FRAMES, "torch"))[:, 0]
    full = frames_of(clips[source])[2] / 255.0
    scale = max(bucket[0] / full.shape[0], bucket[1] / full.shape[1])
    size = tuple(max(b, round(n * scale)) for b, n in zip(bucket, full.shape, strict=False))
    assert size == cover(*full.shape[:2], *bucket)
    scaled = by_formula(full, size) * 2 - 1
    top, left = (size[0] - bucket[0]) // 2, (size[1] - bucket[1]) // 2
    want = scaled[top : top + bucket[0], left : left + bucket[1]].transpose(2, 0, 1)
    np.testing.assert_allclose(got, want, atol=5e-5, rtol=0)  # positions are float32 there


def test_a_still_goes_through_the_bicubic_kernel_of_pillow(tmp_path):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (61, 90, 3), np.uint8))
    image.save(tmp_path / "a.PNG")
    got = read(tmp_path / "a.PNG", Window(0, 1, 1, 24, 30, 1, "torch"))[:, 0]
    scaled = np.asarray(image.resize((35, 24), Image.Resampling.BICUBIC))[:, 2:32]
    np.testing.assert_allclose(got, scaled.transpose(2, 0, 1) / 127.5 - 1, atol=1e-6)
    with pytest.raises(ClipError, match="has 1 frame, the manifest says 9"):
        read(tmp_path / "a.PNG", Window(0, 4, 1, 24, 30, 9, "torch"))
    (tmp_path / "b.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing more")
    with pytest.raises(ClipError, match="cannot identify"):
        read(tmp_path / "b.png", Window(0, 1, 1, 24, 30, 1, "torch"))


def test_rotation_is_applied_before_the_size_is_chosen(tmp_path):
    path = write_clip(
        tmp_path / "a.mp4", 1, 64, 128, picture=lambda k: picture(k, 64, 128), rotation=90, **X264
    )
    got = read(path, Window(0, 1, 1, 128, 64, 1, "torch"))[:, 0]
    want = np.rot90(frames_of(path)[0]).transpose(2, 0, 1) / 127.5 - 1
    np.testing.assert_allclose(got, want, atol=1e-6)


@pytest.mark.long
def test_process_gives_float32_and_keeps_its_one_thread(clips):
    decoder = Decoder(clip_timeout_s=60, resize="torch")
    source, bucket = SIZES[0]
    windows = [Window(start, 3, 1, *bucket, FRAMES, "torch") for start in (0, 1, 2)] * 3
    pixels, replies = decoder.decode(
        [(str(clips[source]), window) for window in windows], (3, 3, *bucket)
    )
    assert {reply.error for reply in replies} == {""}
    assert pixels.dtype == np.float32
    for got, window in zip(pixels, windows, strict=True):
        np.testing.assert_array_equal(got, read(clips[source], window))
    decoder.close()
