"""Read a manifest, from whatever it is kept in: csv, parquet, or a folder of shards."""

from __future__ import annotations

from pathlib import Path

from trainer.data.manifest.manifest import MAX_WRONG_ROWS, Manifest
from trainer.data.manifest.reader import Shown, read_file


def read_manifest(
    path: Path | str,
    root: Path | str | None = None,
    max_wrong_rows: int = MAX_WRONG_ROWS,
    memory_efficient: bool = False,
) -> Manifest:
    """Read a manifest; wrong rows are left out and listed in `wrong`.

    `root` is where relative paths start, by default the manifest's own folder. A folder made by
    `python -m trainer.data shard`, or with `memory_efficient` the one beside the file, keeps
    captions and paths on disk: three numbers a row are in memory. Raises ManifestError for a file
    that is missing or of another kind, a missing column (naming the verb that makes it), no usable
    row, and more than `max_wrong_rows` wrong rows (listing the first of them).
    """
    source = Path(path)
    if memory_efficient or source.is_dir():
        # Here: it needs pyarrow.
        from trainer.data.manifest.shards import find_shards, read_shards

        return read_shards(find_shards(source), root)
    return read_file(source, Path(root) if root is not None else None, max_wrong_rows)


def read_numbers(
    source: Path, max_wrong_rows: int = MAX_WRONG_ROWS, progress: Shown = lambda share, rows: None
) -> Manifest:
    """As `read_manifest`, same rows left out, without paths and texts: 16 bytes of memory a row.

    `progress` gets (share read, rows). Raises ManifestError as `read_manifest` does, but for texts
    of a parquet file that are not UTF-8: it does not look at them.
    """
    if source.is_dir():
        from trainer.data.manifest.shards import read_shards

        return read_shards(source)
    return read_file(source, None, max_wrong_rows, with_texts=False, progress=progress)
