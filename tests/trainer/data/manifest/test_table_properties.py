"""Tables of any content: csv and parquet say the same, good rows stay in order, wrong ones are listed."""

import csv
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.trainer.data.plan.test_buckets import CONFIGS
from tests.trainer.data.rows import random_manifest
from trainer.data.manifest import table_io as tables
from trainer.data.manifest.manifest import ManifestError, WrongRow
from trainer.data.manifest.read import read_manifest
from trainer.data.plan.balance import Balance, classes
from trainer.data.plan.buckets import Buckets
from trainer.data.plan.data_plan import DataPlan

NAMES = ("path", "text", "num_frames", "height", "width")
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NUMBERS = st.integers(-2, 400)
ROWS = st.lists(st.tuples(TEXTS, TEXTS, NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=12)


@pytest.mark.long
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(ROWS)
def test_csv_and_parquet_keep_the_same_good_rows_and_list_the_others(tmp_path, rows):
    good = [row for row in rows if row[0] and min(row[2:]) >= 1]
    with (tmp_path / "t.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([NAMES, *rows])
    columns = dict(zip(NAMES, zip(*rows, strict=True), strict=True))
    pq.write_table(
        pa.table({name: list(values) for name, values in columns.items()}), tmp_path / "t.parquet"
    )
    found = []
    for name in ("t.csv", "t.parquet"):
        if not good:
            with pytest.raises(ManifestError, match="no usable row"):
                read_manifest(tmp_path / name)
            continue
        manifest = read_manifest(tmp_path / name)
        numbers = zip(*(column.tolist() for column in (manifest.num_frames, manifest.height, manifest.width)), strict=True)  # fmt: skip
        kept = [(path, text, *rest) for path, text, rest in zip(manifest.paths, manifest.texts, numbers, strict=True)]  # fmt: skip
        assert kept == good
        assert len(manifest.wrong) == len(rows) - len(good)
        found.append(manifest.fingerprint)
    assert len(set(found)) <= 1


CAPTIONS = st.text(st.sampled_from('ab ,"'), max_size=6)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(st.lists(CAPTIONS, min_size=1, max_size=8), st.integers(2, 4), st.integers(8, 60), st.data())
def test_after_one_quote_too_many_or_too_few_every_line_is_a_row_or_is_named(
    tmp_path_factory, captions, width, block_bytes, data
):
    """Of a table whose rows are lines."""
    path = tmp_path_factory.mktemp("quotes") / "m.csv"
    names = [f"column{number}" for number in range(width)]
    place = data.draw(st.integers(0, width - 1))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for number, caption in enumerate(captions):
            cells = [f"cell{number}"] * width
            cells[place] = caption
            writer.writerow(cells)
    text = path.read_text()
    quotes = [at for at, sign in enumerate(text) if sign == '"']
    at = data.draw(st.integers(len(",".join(names)) + 1, len(text) - 1))
    more = text[:at] + '"' + text[at:]
    if quotes and data.draw(st.booleans()):
        at = data.draw(st.sampled_from(quotes))
        more = text[:at] + text[at + 1 :]
    path.write_text(more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_BLOCK_BYTES", block_bytes)
        table = tables.CsvTable(path)
        kept = [line for lines, _ in table.batches(3) for line in lines]
        table.close()
    named = [line for row in table.wrong for line in lines_of(row)]
    assert sorted(kept + named) == list(range(2, len(captions) + 2))


def lines_of(row: WrongRow) -> range:
    found = re.search(r"in lines (\d+) to (\d+)", row.reason)
    return range(int(found[1]), int(found[2]) + 1) if found else range(row.line, row.line + 1)


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(CONFIGS, st.integers(0, 5), st.integers(0, 6), st.integers(1, 9), st.integers(0, 3))
def test_balanced_epoch_has_the_microbatches_of_the_random_one(config, seed, window, ranks, epoch):
    manifest, buckets = random_manifest(120, seed), Buckets.parse(config)
    costs = classes(cell.frames * cell.height * cell.width for cell in buckets.cells)
    balance = Balance(window, costs, {0: (ranks, 1)}) if window else None
    random, balanced = (DataPlan(manifest, buckets, seed, balance=b) for b in (None, balance))
    one, two = (
        [(batch.cell, tuple(batch.rows.tolist())) for batch in plan.epoch(epoch)]
        for plan in (random, balanced)
    )
    assert sorted(one) == sorted(two)
    rows = balanced.epoch(epoch).rows()
    assert rows.tolist() == [row for _, batch in two for row in batch]
    assert len(np.unique(rows)) == len(rows)
    tail = len(one) - len(one) % ranks
    assert one[tail:] == two[tail:]  # no kind of microbatch is left out more often than others


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([b"a,b", b'"c\nd",e', b"\xff,\xc3\xbc", b"lone", b"", b'"x""y",z']), max_size=9),
    st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans(), st.integers(2, 40), st.integers(1, 4),
)  # fmt: skip
def test_a_csv_read_in_blocks_is_the_csv_module_s(
    tmp_path_factory, lines, end, has_mark, block_bytes, each
):
    path = tmp_path_factory.mktemp("blocks") / "m.csv"
    path.write_bytes(b"\xef\xbb\xbf" * has_mark + end.join([b"path,text", *lines]) + end)
    with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        expected = [row for row in list(csv.reader(file))[1:] if len(row) == 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_BLOCK_BYTES", block_bytes)
        table = tables.CsvTable(path)
        assert [row for _, rows in table.batches(each) for row in rows] == expected
        assert table.share == 1
        table.close()
