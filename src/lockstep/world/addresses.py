"""Host names, addresses, interfaces and ports: found out without torch and without sending anything."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator

import psutil

from lockstep.errors import BadInput

FIRST_PORT, LAST_PORT = 20000, 60000
CANDIDATES = 16


def split_address(text: str) -> tuple[str, int]:
    """Split `tcp://host:port` or `host:port`."""
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"--rendezvous {text!r} is neither host:port nor file:///path")
    return host.strip("[]"), int(port)


def family() -> str:
    """Name a job after the process that started its ranks, where the launcher gives it no name."""
    parent = os.getppid()
    return f"{parent}-{psutil.Process(parent).create_time()}"


def candidate_ports(job: str) -> Iterator[int]:
    """Yield the ports a job may use, spread over a wide range: neighbours in number are not neighbours here."""
    for attempt in range(CANDIDATES):
        word = hashlib.sha256(f"{job}/{attempt}".encode()).digest()
        yield FIRST_PORT + int.from_bytes(word[:4], "big") % (LAST_PORT - FIRST_PORT)


def resolve(host: str) -> str:
    """Return an IP address of a host name; Slurm is asked when the name service does not know it."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        address = _slurm_address(host)
        if address is not None:
            return resolve(address)
        raise BadInput(
            f"the host name {host!r} of rank 0 does not resolve on this machine ({error.strerror or error}): "
            "set MASTER_ADDR to an address that every host can reach"
        ) from error


def _slurm_address(node: str) -> str | None:
    """Return the NodeAddr that Slurm itself uses for a node, if scontrol is here and knows another one."""
    if shutil.which("scontrol") is None:
        return None
    asked = subprocess.run(["scontrol", "show", "node", node], capture_output=True, text=True, timeout=20, check=False)
    for word in asked.stdout.split():
        name, _, value = word.partition("=")
        if name == "NodeAddr" and value != node:
            return value
    return None


def interface_towards(address: str) -> str | None:
    """Return the network interface whose traffic reaches an address; nothing is sent to find out."""
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        mine = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == mine for entry in addresses):
            return name
    return None


def free_port() -> int:
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
