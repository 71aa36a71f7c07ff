"""A trainer without torch and its workers: `crew.py COUNT [stuck INDEX]`. Light, so that eight nodes fit a small machine."""

import os
import sys
import time


def _worker_loop(index):
    if sys.argv[2:] == ["stuck", str(index)]:
        _read_from_stream()
    get()


def get():
    time.sleep(3600)


def _read_from_stream():
    read, _ = os.pipe()
    os.read(read, 1)


def wait_for_data():
    time.sleep(3600)


def all_reduce():
    time.sleep(3600)


def main():
    for index in range(int(sys.argv[1])):
        if os.fork() == 0:
            _worker_loop(index)
    print("up", flush=True)
    if "stuck" in sys.argv:
        wait_for_data()
    all_reduce()


main()
