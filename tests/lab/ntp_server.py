"""A scripted NTP server for lab nodes: `ntp_server.py ADDRESS FILE` tells a time of its own.

Standard library only. It answers as a healthy server of stratum 2 would, as many seconds ahead as
FILE says; the file is read for each answer, so a server that steps is one write away. Questions bear
the kernel's time of arrival: a machine that is busy makes it no worse a server.
"""

import socket
import struct
import sys
import time
from pathlib import Path

EPOCH = 2208988800  # seconds from 1900 to 1970
SO_TIMESTAMPNS = 35


def stamp(seconds):
    whole = int(seconds)
    return struct.pack("!II", (whole + EPOCH) & 0xFFFFFFFF, int((seconds - whole) * (1 << 32)))


def arrived(ancillary):
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("qq", data[:16])
            return seconds + nanoseconds * 1e-9
    return time.time()


def main():
    address, path = sys.argv[1:]
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    server.bind((address, 123))
    while True:
        question, ancillary, _, client = server.recvmsg(512, 256)
        if len(question) < 48:
            continue
        with Path(path).open() as file:
            shift = float(file.read())
        came = arrived(ancillary) + shift
        # Leap 0, version 4, server; stratum 2; the client's poll; 2^-20 s; 1 ms root delay and spread.
        head = struct.pack("!BBBbII4s", 0x24, 2, question[2], -20, 65, 65, bytes((10, 0, 0, 1)))
        answer = head + stamp(came - 1) + question[40:48] + stamp(came)
        server.sendto(answer + stamp(time.time() + shift), client)


main()
