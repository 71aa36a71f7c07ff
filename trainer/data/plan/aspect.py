"""Which height and width a resolution has at each aspect ratio (Open-Sora 1.2's tables).

Ratios are height / width with two decimals; the order of a table decides ties, so it is kept.
Upstream wrote some ratios of the PixArt tables with one decimal ("1.0"), Lambda's fork with two:
both are read. Names "NNpx" are ours: area NN x NN, sides multiples of 16, square below 64.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from trainer.errors import ConfigError


@dataclass(frozen=True)
class Resolution:
    """A name's area in pixels and its sizes: ratio -> (height, width), in the table's order."""

    name: str
    pixels: int
    sizes: Mapping[str, tuple[int, int]]


# Name, area in pixels, ratio:HEIGHTxWIDTH, in order of area. 256*2 is the table of "256" with its
# sizes doubled; "4k" and "2880" have the same area, as in Open-Sora.
_TABLES = """
144p 36864 0.38:117x312 0.43:125x291 0.48:133x277 0.50:135x270 0.53:139x262 0.54:141x260
  0.56:144x256 0.62:151x241 0.67:156x234 0.75:166x221 1.00:192x192 1.33:221x165 1.50:235x156
  1.78:256x144 1.89:263x139 2.00:271x135 2.08:277x132
256 65536 0.25:128x512 0.26:128x496 0.27:128x480 0.28:128x464 0.32:144x448 0.33:144x432
  0.35:144x416 0.40:160x400 0.42:160x384 0.48:176x368 0.50:176x352 0.52:176x336 0.57:192x336
  0.60:192x320 0.68:208x304 0.72:208x288 0.78:224x288 0.82:224x272 0.88:240x272 0.94:240x256
  1.00:256x256 1.07:256x240 1.13:272x240 1.21:272x224 1.29:288x224 1.38:288x208 1.46:304x208
  1.67:320x192 1.75:336x192 2.00:352x176 2.09:368x176 2.40:384x160 2.50:400x160 2.89:416x144
  3.00:432x144 3.11:448x144 3.62:464x128 3.75:480x128 3.88:496x128 4.00:512x128
240p 102240 0.38:196x522 0.43:210x490 0.48:222x462 0.50:226x452 0.53:232x438 0.54:236x436
  0.56:240x426 0.62:252x404 0.67:262x393 0.75:276x368 1.00:320x320 1.33:370x278 1.50:392x262
  1.78:426x240 1.89:440x232 2.00:452x226 2.08:462x222
360p 230400 0.38:294x784 0.43:314x732 0.48:332x692 0.50:340x680 0.53:350x662 0.54:352x652
  0.56:360x640 0.62:380x608 0.67:392x588 0.75:416x554 1.00:480x480 1.33:554x416 1.50:588x392
  1.78:640x360 1.89:660x350 2.00:678x340 2.08:692x332
512 262144 256*2
480p 409920 0.38:392x1046 0.43:420x980 0.48:444x925 0.50:452x904 0.53:466x880 0.54:470x870
  0.56:480x854 0.62:506x810 0.67:522x784 0.75:554x738 1.00:640x640 1.33:740x555 1.50:784x522
  1.78:854x480 1.89:880x466 2.00:906x454 2.08:924x444
720p 921600 0.38:588x1568 0.43:628x1466 0.48:666x1388 0.50:678x1356 0.53:698x1318 0.54:706x1306
  0.56:720x1280 0.62:758x1212 0.67:784x1176 0.75:832x1110 1.00:960x960 1.33:1108x832 1.50:1176x784
  1.78:1280x720 1.89:1320x698 2.00:1358x680 2.08:1386x666
1024 1048576 256*4
1080p 2073600 0.38:882x2352 0.43:942x2198 0.48:998x2080 0.50:1018x2036 0.53:1048x1980
  0.54:1058x1958 0.56:1080x1920 0.62:1138x1820 0.67:1176x1764 0.75:1248x1664 1.00:1440x1440
  1.33:1662x1246 1.50:1764x1176 1.78:1920x1080 1.89:1980x1048 2.00:2036x1018 2.08:2078x998
2k 3686400 0.38:1176x3136 0.43:1256x2930 0.48:1330x2770 0.50:1358x2716 0.53:1398x2640
  0.54:1412x2612 0.56:1440x2560 0.62:1518x2428 0.67:1568x2352 0.75:1662x2216 1.00:1920x1920
  1.33:2218x1664 1.50:2352x1568 1.78:2560x1440 1.89:2638x1396 2.00:2716x1358 2.08:2772x1330
2048 4194304 256*8
2880 8294400 0.25:1408x5760 0.26:1408x5568 0.27:1408x5376 0.28:1408x5184 0.32:1600x4992
  0.33:1600x4800 0.34:1600x4672 0.40:1792x4480 0.42:1792x4288 0.47:1920x4096 0.49:1920x3904
  0.51:1920x3776 0.55:2112x3840 0.59:2112x3584 0.68:2304x3392 0.72:2304x3200 0.78:2496x3200
  0.83:2496x3008 0.89:2688x3008 0.93:2688x2880 1.00:2880x2880 1.07:2880x2688 1.12:3008x2688
  1.21:3008x2496 1.28:3200x2496 1.39:3200x2304 1.47:3392x2304 1.70:3584x2112 1.82:3840x2112
  2.03:3904x1920 2.13:4096x1920 2.39:4288x1792 2.50:4480x1792 2.92:4672x1600 3.00:4800x1600
  3.12:4992x1600 3.68:5184x1408 3.82:5376x1408 3.95:5568x1408 4.00:5760x1408
4k 8294400 0.38:1764x4704 0.43:1886x4400 0.48:1996x4158 0.50:2036x4072 0.53:2096x3960
  0.54:2118x3918 0.62:2276x3642 0.56:2160x3840 0.67:2352x3528 0.75:2494x3326 1.00:2880x2880
  1.33:3326x2494 1.50:3528x2352 1.78:3840x2160 1.89:3958x2096 2.00:4072x2036 2.08:4156x1994
"""

_RATIO_NAMES = """
3:8=0.38 9:21=0.43 12:25=0.48 1:2=0.50 9:17=0.53 27:50=0.54 9:16=0.56 5:8=0.62 2:3=0.67
3:4=0.75 1:1=1.00 4:3=1.33 3:2=1.50 16:9=1.78 17:9=1.89 2:1=2.00 50:27=2.08"""
RATIO_NAMES = dict(pair.split("=") for pair in _RATIO_NAMES.split())  # height:width, as written


@cache
def resolution(name: str) -> Resolution:
    """The resolution of a name; ConfigError with the known names for any other."""
    if square := re.fullmatch(r"(\d+)px", name):
        return _pixel_resolution(name, int(square[1]))
    rows = (entry.split() for entry in re.split(r"\n(?! )", _TABLES.strip()))
    tables = {known: (int(pixels), sizes) for known, pixels, *sizes in rows}
    if name not in tables:
        raise ConfigError(f"resolution {name!r} is not known; choose {', '.join(tables)} and NNpx")
    pixels, entries = tables[name]
    base, _, factor = entries[0].partition("*")
    if factor:
        times, smaller = int(factor), resolution(base).sizes.items()
        sizes = {ratio: (height * times, width * times) for ratio, (height, width) in smaller}
    else:
        parts = (re.split("[:x]", entry) for entry in entries)
        sizes = {ratio: (int(height), int(width)) for ratio, height, width in parts}
    return Resolution(name, pixels, sizes)


def _pixel_resolution(name: str, side: int) -> Resolution:
    if side < 8 or side % 2:
        raise ConfigError(f"resolution {name!r}: an even number of pixels from 8")
    if side < 64:  # rounding to 16 would bend every other ratio
        return Resolution(name, side * side, {"1.00": (side, side)})
    roots = {ratio: math.sqrt(float(ratio)) for ratio in resolution("360p").sizes}
    sizes = {n: (16 * round(side * r / 16), 16 * round(side / r / 16)) for n, r in roots.items()}
    return Resolution(name, side * side, sizes)


def size_of(name: str, ratio: str) -> tuple[int, int]:
    """Height and width of a resolution at a ratio: "0.56", "1.0", "1.00" or "9:16"."""
    sizes = resolution(name).sizes
    key = RATIO_NAMES.get(ratio, ratio)
    with suppress(ValueError):
        key = f"{float(key):.2f}"
    if key not in sizes:
        raise ConfigError(f"{name} has no ratio {ratio!r}; choose one of {', '.join(sizes)}")
    return sizes[key]
