"""The work of encoding: processes decode clips ahead; latents and captions are made of them."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.data.features.files import Piece, write
from trainer.data.features.index import COLUMNS, EXACT, POSTERIOR
from trainer.data.features.units import Grid
from trainer.data.video.decode import Decoder, Reply, Window
from trainer.data.video.decoder_pool import DecoderPool, Try
from trainer.models.vae.interface import to_signed
from trainer.weights.write import NAMES

# K chunks · P 1, or 2: mean and log-variance · C channels · T,H,W frames, height, width in pixels
# Z,h,w latent frames, height, width
SEGMENT_BYTES = 48 << 20  # of pixels that one decoding gives
_VALUES_AT_ONCE = 1 << 26  # fp32 values of pixels that the VAE is given at once: 256 MB
_CAPTIONS_AT_ONCE = 16


@dataclass(frozen=True)
class Segment:
    """Frames of a clip that are decoded at once."""

    shard: int
    unit: int
    path: str
    lengths: list[int]  # of the chunks to make of them
    first: int  # frame, a multiple of the chunks' step
    window: Window


Decoded = tuple[Segment, NDArray[Any], Reply]


def decode_ahead(
    segments: Iterable[Segment], workers: int, clip_timeout_s: float
) -> Generator[Decoded, None, None]:
    """Pixels [3, T, H, W] of each segment, in order; some are decoded before they are asked for.

    Raises DecoderBroken.
    """
    waiting: deque[Future[Decoded]] = deque()
    with closing(DecoderPool(max(1, workers), clip_timeout_s, "encode")) as pool:
        for segment in segments:
            waiting.append(pool.submit(partial(_decode, pool, segment)))
            if len(waiting) > 2 * max(1, workers):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _decode(pool: DecoderPool, segment: Segment, decoder: Decoder) -> Decoded:
    window = segment.window
    asked = [(segment.path, window)], (3, window.frames, window.height, window.width)

    def read() -> Decoded:
        pixels, (reply,) = decoder.decode(*asked, identify=True)
        if reply.error and not reply.storage_fails:  # a machine that was busy once
            pixels, (reply,) = decoder.decode(*asked, identify=True)
        return segment, pixels[0], reply

    # An outage must not leave a clip out of all epochs.
    return pool.until_read(decoder, segment.path, read, lambda found: _judge(found[2]))


def _judge(reply: Reply) -> Try:
    return Try(reply.error, reply.storage_fails, reply.gone)


@dataclass(frozen=True)
class LatentMaker:
    vae: Any
    grid: Grid
    kind: str
    dtype: torch.dtype
    device: torch.device

    def chunks(self, pixels_CTHW: NDArray[Any], first: int, length: int, key: int) -> Tensor:
        """All chunks of `length` frames [K, P, Z, C, h, w] on the CPU; `first` numbers frame 0."""
        step = self.grid.step(length)
        count = self.grid.count(length, pixels_CTHW.shape[1])
        clip = torch.from_numpy(pixels_CTHW)
        each = max(1, _VALUES_AT_ONCE // (clip[:, 0].numel() * length))
        made = []
        for begin in range(0, count, each):
            places = range(begin, min(count, begin + each))
            video = torch.stack([clip[:, step * n : step * n + length] for n in places])
            made.append(self._stored(video, [first // step + n for n in places], key))
        return torch.cat(made)

    @torch.no_grad()
    def _stored(self, video_KCTHW: Tensor, places: list[int], key: int) -> Tensor:
        video = to_signed(video_KCTHW.to(self.device))
        if self.kind == POSTERIOR:
            mean, logvar = self.vae.encode_posterior(video)
            values = torch.stack([mean, logvar], 1)
        elif self.kind == EXACT:
            values = self.vae.encode(video)[:, None]
        else:
            values = self.vae.encode(video, noises=self._noises(video, places, key))[:, None]
        return values.to("cpu", self.dtype).permute(0, 1, 3, 2, 4, 5).contiguous()

    def _noises(self, video: Tensor, places: list[int], key: int) -> tuple[Tensor, Tensor]:
        """Of each chunk its own, whatever is encoded beside it: a resumed job draws the same."""
        _, _, frames, height, width = video.shape
        latent, rows, columns = self.grid.latent_size((frames, height, width))
        own = self.vae.settings.spatial.latent_channels
        of_frames, of_latent = [], []
        for place in places:
            digest = blake2b(f"{key} {frames} {place}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
            of_frames.append(torch.randn(frames, own, rows, columns, generator=generator))
            size = (self.grid.channels, latent, rows, columns)
            of_latent.append(torch.randn(size, generator=generator))
        return torch.cat(of_frames).to(self.device), torch.stack(of_latent).to(self.device)


def text_features(encoder: Any, captions: Sequence[str]) -> Iterator[tuple[int, Tensor]]:
    """(place in `captions`, features [tokens, C] on the CPU), short ones first: less padding."""
    order = sorted(range(len(captions)), key=lambda place: (len(captions[place]), place))
    for start in range(0, len(order), _CAPTIONS_AT_ONCE):
        places = order[start : start + _CAPTIONS_AT_ONCE]
        y_B1LC, mask_BL = encoder.encode([captions[place] for place in places])
        counts = mask_BL.sum(1).tolist()
        for row, place in enumerate(places):
            yield place, y_B1LC[row, 0, : counts[row]].cpu().contiguous()


class ShardBuilder:
    """Entries of a shard, with the CRC-32 of each of their chunks."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._entries: list[dict[str, Any]] = []
        self._pieces: list[Piece] = []
        self._crcs: list[int] = []

    def add(self, name: str, values: Tensor, chunks: int, **columns: Any) -> None:
        """A tensor of `chunks` equal chunks, with its columns in the shard's table."""
        data = values.flatten().view(torch.uint8).numpy().data
        size = len(data) // chunks
        self._entries.append({**columns, "crc_at": len(self._crcs)})
        self._pieces.append(Piece(name, NAMES[values.dtype], tuple(values.shape), data))
        self._crcs += [zlib.crc32(data[n * size : (n + 1) * size]) for n in range(chunks)]

    def write(self, path: Path, **meta: Any) -> None:
        table = [
            Piece.of(f"index.{name}", [entry.get(name, 0) for entry in self._entries], dtype)
            for name, dtype in COLUMNS[self._kind].items()
        ]
        table.append(Piece.of("index.crc", self._crcs, "U32"))
        write(path, [*table, *self._pieces], {"kind": self._kind, **meta})
