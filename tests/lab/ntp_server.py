"""A scripted NTP server for lab nodes: `ntp_server.py ADDRESS SHIFT_S` tells a time of its own.

Standard library only. It answers as a healthy server of stratum 2 would, SHIFT_S seconds ahead.
"""

import socket
import struct
import sys
import time

EPOCH = 2208988800  # seconds from 1900 to 1970


def stamp(seconds):
    whole = int(seconds)
    return struct.pack("!II", (whole + EPOCH) & 0xFFFFFFFF, int((seconds - whole) * (1 << 32)))


def main():
    address, shift = sys.argv[1], float(sys.argv[2])
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 123))
    while True:
        question, client = server.recvfrom(512)
        if len(question) < 48:
            continue
        now = time.time() + shift
        # Leap 0, version 4, server; stratum 2; the client's poll; 2^-20 s; 1 ms root delay and spread.
        head = struct.pack("!BBBbII4s", 0x24, 2, question[2], -20, 65, 65, bytes((10, 0, 0, 1)))
        answer = head + stamp(now - 1) + question[40:48] + stamp(now) + stamp(time.time() + shift)
        server.sendto(answer, client)


main()
