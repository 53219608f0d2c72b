"""What a node sends to an address that has not been proved, and which proofs it believes.

    python quic_proofs.py PORT OTHER_PORT SHORT_PORT CA KEY      one line of JSON for each first flight, exit 0

KEY is the private key of the nodes' certificate, whose chain is longer than three datagrams but for the last of them. Tokens are made here
from what gateway/src/listen/quic/address_tokens.rs says, by other code: so they may be of any day and any address.
"""

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import select
import sys
import time

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from quic_peer import Peer

DAY = 86_400
# Long enough for a node to have said everything again: its first patience is one second.
QUIET = 2.5


class Sealer:
    """Makes tokens as a node does that has this key."""

    def __init__(self, key: bytes) -> None:
        self.secret = hmac.new(b"turnway address tokens", key, hashlib.sha256).digest()

    def seal(self, data: bytes, day: int) -> bytes:
        chance = os.urandom(16)
        key = HKDF(SHA256(), 32, salt=b"turnway address tokens", info=day.to_bytes(8, "big") + chance)
        return AESGCM(key.derive(self.secret)).encrypt(bytes(12), data, b"") + chance

    def proof(self, address: str, issued: float, day: int) -> bytes:
        packed = ipaddress.ip_address(address).packed
        return self.seal(b"\x01\0" + packed + int(issued).to_bytes(8, "big"), day)


def count(peers: dict[str, Peer], seconds: float) -> dict[str, tuple[int, int]]:
    """What each has sent in its first flight, and what comes back while it says nothing more."""
    back = dict.fromkeys(peers, 0)
    names = {peer.socket: name for name, peer in peers.items()}
    end = time.time() + seconds
    while (left := end - time.time()) > 0:
        for ready in select.select(list(names), [], [], left)[0]:
            back[names[ready]] += len(ready.recv(65536))
    return {name: (sum(map(len, peer.sent)), back[name]) for name, peer in peers.items()}


def told(port: int, ca: str) -> list[bytes]:
    """The proofs that a node gives to a client for the next time."""
    peer = Peer(port, ca).hello()
    assert peer.until(lambda: len(peer.tokens) >= 2), "no tokens"
    peer.quic.close()
    peer.flush()
    return peer.tokens


def main() -> None:
    port, other, short, ca = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    with open(sys.argv[5]) as file:
        lines = [line for line in file.read().splitlines() if "-----" not in line]
    ours, strangers = Sealer(base64.b64decode("".join(lines))), Sealer(b"another key")
    given, now = told(port, ca), time.time()
    today = int(now) // DAY
    here = "127.0.0.1"
    shown = {
        "nothing": (port, b""),
        "nothing, to one with a short chain": (short, b""),
        "what it gave": (port, given[0]),
        "what its fellow gave": (other, given[1]),
        "chance": (port, os.urandom(64)),
        "what it gave, bent": (port, given[1][:-1] + bytes([given[1][-1] ^ 1])),
        "another certificate's": (port, strangers.proof(here, now, today)),
        "today's": (port, ours.proof(here, now - 60, today)),
        "yesterday's key": (port, ours.proof(here, now - 60, today - 1)),
        "the key of the day before": (port, ours.proof(here, now - 60, today - 2)),
        "over": (port, ours.proof(here, now - DAY - 60, today)),
        "another address's": (port, ours.proof("127.0.0.2", now - 60, today)),
    }
    counted = count({name: Peer(to, ca, token).begin() for name, (to, token) in shown.items()}, QUIET)
    counted |= count({"what it gave, again": Peer(port, ca, given[0]).begin()}, QUIET)
    for name, (sent, back) in counted.items():
        print(json.dumps({"shown": name, "sent": sent, "back": back}), flush=True)


main()
