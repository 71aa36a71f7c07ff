"""Seeded products and copied patterns of one device, compared bit by bit; torch is handed in.

cuBLAS gives equal bits on GPUs of one architecture and number of multiprocessors, with one version
of the library and one stream (its documentation, "Results Reproducibility"): `kin` names these.
"""

import ctypes
import os
import re
import time

SEED = 4242
SIDE = {"large": 8192, "small": 4096, "cpu": 256}  # of square matrices
LARGE_FROM = 16 << 30  # bytes of GPU memory; products of the large side take about 2 GiB
SHARES = {"bf16": 0.5, "fp16": 0.5, "fp32": 0.25, "tf32": 0.25}  # of the time
CHUNK_ROWS = 1024  # of a checksum at a time: int64 takes four times the room of bf16
FLIPS = 1 << 16  # differing values of which each is looked at
FEWEST = 3  # products of a kind: two that differ do not say which one is wrong
SUMS = 1000  # different products that are told apart
GOLDEN = -7046029254386353131  # 2^64 divided by the golden ratio, as int64


def describe(torch, device, about):
    """What must be equal for equal bits: model, multiprocessors, versions of the libraries."""
    words = [about["model"], "torch %s" % torch.__version__]
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        words.insert(1, "%d SMs" % facts.multi_processor_count)
        words.append("ROCm %s" % torch.version.hip if torch.version.hip else "")
        words.append("CUDA %s" % torch.version.cuda if torch.version.cuda else "")
        words.append("" if torch.version.hip else "cuBLAS %s" % cublas_version())
        words.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    else:
        words += [torch.backends.cpu.get_cpu_capability(), processor()]
    return ", ".join(word for word in words if word)[:300]


def cublas_version():
    """Of the library that this process has loaded."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            path = re.search(r"(?<!\S)/\S*libcublas\.so\S*", maps.read())
        if not path:
            return "unknown"
        library, found = ctypes.CDLL(path.group()), ctypes.c_int()
        numbers = []
        for part in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL; 0 is success
            if library.cublasGetProperty(part, ctypes.byref(found)) != 0:
                return "unknown"
            numbers.append(str(found.value))
        return ".".join(numbers)
    except (OSError, AttributeError):
        return "unknown"


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            found = re.search(r"model name\s*:\s*(.+)", file.read())
    except OSError:
        return ""
    return found.group(1).strip() if found else ""


def weights(torch, count, device):
    """Odd numbers: a sum of values times these changes with every single value."""
    return torch.arange(1, count + 1, dtype=torch.int64, device=device) * GOLDEN | 1


def as_bits(torch, values):
    return values.view({2: torch.int16, 4: torch.int32}[values.element_size()])


def parts(torch, bits):
    """(first row, rows as int64) of a matrix, as many at a time as fit beside it."""
    for at in range(0, bits.shape[0], CHUNK_ROWS):
        yield at, bits[at : at + CHUNK_ROWS].to(torch.int64)


def row_sums(torch, bits):
    """A checksum of each row of a matrix, int64, on its device."""
    across = weights(torch, bits.shape[1], bits.device)
    return torch.cat([(part * across).sum(1) for _, part in parts(torch, bits)])


def column_sums(torch, bits):
    down = weights(torch, bits.shape[0], bits.device)[:, None]
    return sum((part * down[at : at + CHUNK_ROWS]).sum(0) for at, part in parts(torch, bits))


def checksum(torch, bits):
    """16 hexadecimal digits. Sums of whole numbers do not depend on their order."""
    rows = row_sums(torch, bits)
    total = int((rows * weights(torch, len(rows), rows.device)).sum())
    return "%016x" % (total & (2**64 - 1))


def difference(torch, bits, others):
    """How many values differ, how many bits are flipped, and where the first one is.

    Without `bits` and `at`, its position in the flat tensor, where more than `FLIPS` differ.
    """
    flips = bits ^ others
    values = int((flips != 0).sum())
    if not 0 < values <= FLIPS:
        return {"values": values}
    where = flips.flatten().nonzero()[:, 0]
    mask = 2 ** (8 * flips.element_size()) - 1
    found = flips.flatten()[where].tolist()
    ones = sum(bin(one & mask).count("1") for one in found)
    return {"values": values, "bits": ones, "at": int(where.min())}


class Products:
    """Multiplies the same matrices again and again; keeps the usual product of each kind."""

    def __init__(self, torch, device, enter):
        self.torch, self.device, self.enter = torch, device, enter
        self.usual = {}  # type: dict  # kind -> product
        self.side = SIDE["cpu"]
        if device.type == "cuda":
            facts = torch.cuda.get_device_properties(device)
            self.side = SIDE["large" if facts.total_memory >= LARGE_FROM else "small"]

    def kinds(self):
        """(name, dtype, precision of fp32 products) of what this device multiplies."""
        torch = self.torch
        if self.device.type != "cuda":
            return [("fp32", torch.float32, "highest")]
        fp32 = ("fp32", torch.float32, "highest")
        bf16 = ("bf16", torch.bfloat16, "highest")
        if torch.version.hip:
            return [bf16, fp32]
        if torch.cuda.get_device_capability(self.device) < (8, 0):  # before Ampere
            return [("fp16", torch.float16, "highest"), fp32]
        return [bf16, fp32, ("tf32", torch.float32, "high")]

    def run(self, seconds):
        """What each kind of product gave in its share of `seconds`."""
        torch, kinds = self.torch, self.kinds()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        generator = torch.Generator().manual_seed(SEED)
        self.usual.clear()
        matrices = [torch.randn(self.side, self.side, generator=generator) for _ in range(2)]
        total = sum(SHARES[name] for name, _, _ in kinds)
        found = []
        before = torch.get_float32_matmul_precision()
        try:
            for name, dtype, precision in kinds:
                self.enter("multiply in %s" % name)
                torch.set_float32_matmul_precision(precision)
                one, two = (matrix.to(dtype).to(self.device) for matrix in matrices)
                found.append(self.repeat(name, one, two, seconds * SHARES[name] / total))
        finally:
            torch.set_float32_matmul_precision(before)
        answer = {"products": found, "side": self.side}
        if self.device.type == "cuda":
            answer["memory_bytes"] = torch.cuda.max_memory_allocated(self.device)
        return answer

    def repeat(self, name, one, two, seconds):
        """All products of one kind: how many differ from the usual one, and how the first did.

        The first product may be the wrong one: the usual one is what came most often.
        """
        torch = self.torch
        usual = torch.matmul(one, two)
        into = torch.empty_like(usual)
        key = checksum(torch, as_bits(torch, usual))
        counts, count = {key: 1}, 1
        first = {}  # type: dict
        started = time.perf_counter()
        while time.perf_counter() - started < seconds or count < FEWEST:
            torch.matmul(one, two, out=into)
            count += 1
            bits, right = as_bits(torch, into), as_bits(torch, usual)
            if torch.equal(bits, right):
                counts[key] += 1
                continue
            other = checksum(torch, bits)
            if other in counts or len(counts) < SUMS:
                counts[other] = counts.get(other, 0) + 1
            first = first or difference(torch, bits, right)
            if counts.get(other, 0) > counts[key]:
                key, usual, into = other, into, usual
        self.usual[name] = usual
        result = {"kind": name, "count": count, "others": count - counts[key], "sum": key}
        if first:
            result["differs"] = first
        return result

    def lines(self, kind):
        """Checksums of the usual product's rows and columns, 8 hexadecimal digits each."""
        bits = as_bits(self.torch, self.usual[kind])
        sums = {"rows": row_sums(self.torch, bits), "columns": column_sums(self.torch, bits)}
        return {
            name: "".join("%08x" % (one >> 32 & 0xFFFFFFFF) for one in values.tolist())
            for name, values in sums.items()
        }

    def values(self, kind, rows, columns):
        """The bits of the usual product's values where these rows and columns cross."""
        torch = self.torch
        bits = as_bits(torch, self.usual[kind])
        down = torch.tensor(rows, device=self.device)
        across = torch.tensor(columns, device=self.device)
        mask = 2 ** (8 * bits.element_size()) - 1
        return {"found": [one & mask for one in bits[down][:, across].flatten().tolist()]}


def flat_sum(torch, bits):
    return checksum(torch, bits.view(-1, CHUNK_ROWS))


class Copies:
    """A seeded pattern and its inverse, copied around and compared; `size` in bytes."""

    def __init__(self, torch, device, size, enter):
        self.torch, self.device, self.enter = torch, device, enter
        generator = torch.Generator().manual_seed(SEED)
        count = size // 4 // CHUNK_ROWS * CHUNK_ROWS
        self.host = torch.randint(
            -(2**31), 2**31 - 1, (count,), generator=generator, dtype=torch.int32
        )
        self.right = flat_sum(torch, self.host)
        self.steps = 0
        self.wrong = []  # type: list

    def run(self):
        """To the device, within it and back, by pageable and pinned memory of the host."""
        torch = self.torch
        pattern = self.right
        for _ in range(2):
            for memory in ("pageable", "pinned") if self.device.type == "cuda" else ("pageable",):
                is_pinned = memory == "pinned"
                self.enter("copy to the device, %s memory" % memory)
                source = self.host.pin_memory() if is_pinned else self.host
                there = torch.zeros_like(self.host, device=self.device)
                there.copy_(source, non_blocking=is_pinned)
                self.compare("host to device, %s" % memory, there)
                self.enter("copy within the device")
                again = torch.zeros_like(there)
                again.copy_(there)
                self.compare("within the device", again)
                self.enter("copy to the host, %s memory" % memory)
                back = torch.zeros_like(source, pin_memory=is_pinned)
                back.copy_(again, non_blocking=is_pinned)
                self.wait(self.device)
                self.compare("device to host, %s" % memory, back)
            self.host.bitwise_not_()  # every bit was 0 and 1
            self.right = flat_sum(torch, self.host)
        return self.answer(sum=pattern)

    def between(self, names):
        """From each of these devices of the node to each other one."""
        torch = self.torch
        for source_name in names:
            source = torch.device(source_name)
            for name in names:
                if name == source_name:
                    continue
                target = torch.device(name)
                self.enter("copy from %s to %s" % (source_name, name))
                there = self.host.to(source)
                again = torch.zeros_like(self.host, device=target)
                self.wait(target)
                again.copy_(there)
                self.wait(source)
                self.wait(target)
                self.compare("%s to %s" % (source_name, name), again)
        return self.answer()

    def compare(self, step, found):
        """By checksum where the copy is: bringing it back would test a second copy."""
        torch, is_right = self.torch, False
        self.steps += 1
        if found.device.type == "cpu":
            is_right = torch.equal(found, self.host)
        else:
            is_right = flat_sum(torch, found) == self.right
        if not is_right and len(self.wrong) < 64:
            differs = difference(torch, found.cpu(), self.host)
            self.wrong.append(dict(differs, step=step))

    def wait(self, device):
        if device.type == "cuda":
            self.torch.cuda.synchronize(device)

    def answer(self, **more):
        return dict(more, steps=self.steps, wrong=self.wrong, bytes=self.host.numel() * 4)
