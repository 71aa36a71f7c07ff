"""One device of the active tests: multiplies matrices, runs collectives. Sent by payload `active`.

Runs under the training environment's interpreter while its stdin is open: one order, one answer a
line. A thread reports the current phase twice a second, which distinguishes a rank that waits in a
collective from one that was stopped.
"""

import ctypes
import datetime
import json
import os
import sys
import threading
import time

from clusterctl.payload.torch_tests.bits import Copies, Products, describe

BEAT_S = 0.5
MATMUL = {"cuda": 8192, "cpu": 512}  # side of the square matrices
# Of the big all-reduce; the best counts, since a collective is as slow as its latest rank.
REPEATS = {"cuda": 3, "cpu": 6}
SMALL_REPEATS = 8
phase = "import torch"
lock = threading.Lock()


def send(**message):
    with lock:
        os.write(1, (json.dumps(message) + "\n").encode())


def beat():
    while True:
        send(type="beat", phase=phase)
        time.sleep(BEAT_S)


def serve():
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
    threading.Thread(target=beat, daemon=True).start()
    orders = sys.stdin.buffer
    asked = json.loads(orders.readline())
    try:
        rank = Rank(asked["device"])
    except Exception as error:  # noqa: BLE001 - boundary: it becomes the answer
        send(type="ready", error=short(error))
        return
    send(type="ready", **rank.about)
    for line in orders:
        order = json.loads(line)
        started = time.monotonic()
        rank.failed_in = ""
        try:
            answer = getattr(rank, order["do"])(order)
        except Exception as error:  # noqa: BLE001 - boundary: it becomes the answer
            answer = {"error": short(error), "phase": rank.failed_in or phase}
        send(type="answer", id=order["id"], seconds=round(time.monotonic() - started, 4), **answer)


def short(error):
    """The first line of torch's errors, without the C++ trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ("%s: %s" % (type(error).__name__, lines[0] if lines else ""))[:300]


def enter(words):
    global phase
    phase = words


class Rank:
    def __init__(self, device):
        os.environ.pop("NVIDIA_TF32_OVERRIDE", None)  # the products choose it themselves
        import torch
        import torch.distributed

        self.torch = torch
        self.dist = torch.distributed  # type: Any
        self.kind = device.split(":")[0]
        self.device = torch.device(device)
        if self.kind == "cuda":
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)  # creating the context takes seconds
            model = torch.cuda.get_device_name(self.device)
        else:
            model = "cpu, %d threads" % torch.get_num_threads()
        self.store = None  # type: Any
        self.repeated = None  # type: Any  # the products that were compared
        self.failed_in = ""
        self.about = {"torch": torch.__version__, "model": model, "device": device}
        enter("idle")

    def matmul(self, order):
        """TFLOP/s over `seconds` of consecutive products: bf16 on a GPU, fp32 elsewhere."""
        torch, side = self.torch, MATMUL[self.kind]
        enter("matmul")
        dtype = torch.bfloat16 if self.kind == "cuda" else torch.float32
        one = torch.randn(side, side, device=self.device).to(dtype)
        two = torch.randn(side, side, device=self.device).to(dtype)
        into = torch.empty_like(one)
        for _ in range(3):
            torch.matmul(one, two, out=into)
        self.wait()
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < order["seconds"]:
            for _ in range(20 if self.kind == "cuda" else 1):
                torch.matmul(one, two, out=into)
                count += 1
            self.wait()
        seconds = time.perf_counter() - started
        is_finite = bool(torch.isfinite(into.float()).all())
        enter("idle")
        speed = 2.0 * side**3 * count / seconds / 1e12
        return {"tflops": speed, "finite": is_finite, "model": self.about["model"]}

    def products(self, order):
        """Seeded products over `seconds`, compared bit by bit; the usual ones are kept."""
        self.repeated = Products(self.torch, self.device, enter)
        return self.kin_of(self.repeated.run(order["seconds"]))

    def kin_of(self, found):
        enter("idle")
        return dict(found, kin=describe(self.torch, self.device, self.about))

    def lines(self, order):
        return self.repeated.lines(order["kind"])

    def values(self, order):
        return self.repeated.values(order["kind"], order["rows"], order["columns"])

    def copies(self, order):
        """A pattern of `bytes` to the device, within it, and back."""
        self.free()
        return self.kin_of(Copies(self.torch, self.device, order["bytes"], enter).run())

    def between(self, order):
        """A pattern of `bytes` from each of `devices` to each other, by this process."""
        copies = Copies(self.torch, self.device, order["bytes"], enter)
        return self.kin_of(copies.between(order["devices"]))

    def free(self):
        self.repeated = None
        if self.kind == "cuda":
            self.torch.cuda.empty_cache()

    def wait(self):
        if self.kind == "cuda":
            self.torch.cuda.synchronize(self.device)

    def host(self, order):
        """Open a store for a group; its port is free because the kernel chose it."""
        enter("open a store")
        limit = datetime.timedelta(seconds=order["timeout_s"])
        self.store = self.dist.TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
        enter("idle")
        return {"port": self.store.port}

    def group(self, order):
        """All-reduce, and all to all, with the other ranks of a group; seconds of the best."""
        dist = self.dist
        limit = datetime.timedelta(seconds=order["timeout_s"])
        enter("reach the store at %s port %d" % (order["address"], order["port"]))
        store = self.store if order["rank"] == 0 else None
        if store is None:
            store = dist.TCPStore(order["address"], order["port"], None, False, limit)
        store.set_timeout(limit)
        enter("meet the others")
        # Ranks meet by the number of groups they have made, and torch keeps the number of one that
        # failed: the next group would never meet.
        self.dist.distributed_c10d._world.group_count = 0
        backend, more = "gloo", {}
        if self.kind == "cuda":
            backend, more = "nccl", {"device_id": self.device}
        more.update(rank=order["rank"], world_size=order["world"])
        dist.init_process_group(backend, store=store, timeout=limit, **more)
        try:
            return self.talk(order)
        except Exception:
            self.failed_in = phase
            raise
        finally:
            enter("part")
            dist.destroy_process_group()
            self.store = None
            enter("idle")

    def talk(self, order):
        torch, dist, world = self.torch, self.dist, order["world"]
        small = torch.ones(2, device=self.device)
        big = torch.ones(max(1, order["bytes"] // 4 // world) * world, device=self.device)
        enter("all-reduce of 8 bytes")
        latency_s = self.best(lambda: dist.all_reduce(small), SMALL_REPEATS)
        enter("all-reduce of %d bytes" % order["bytes"])
        reduce_s = self.best(lambda: dist.all_reduce(big), REPEATS[self.kind])
        enter("all-to-all of %d bytes" % order["bytes"])
        into = torch.empty_like(big)
        exchange_s = self.best(lambda: dist.all_to_all_single(into, big), 1)
        expected = float(world) ** (SMALL_REPEATS + 1)
        enter("compare the sum")
        if abs(float(small[0]) / expected - 1) > 1e-3:
            return {"error": "the sum of the ranks is wrong: %g, not %g" % (small[0], expected)}
        return {"latency_s": latency_s, "reduce_s": reduce_s, "exchange_s": exchange_s}

    def best(self, function, times):
        function()  # the first one opens connections
        self.wait()
        shortest = float("inf")
        for _ in range(times):
            started = time.perf_counter()
            function()
            self.wait()
            shortest = min(shortest, time.perf_counter() - started)
        return shortest


serve()
