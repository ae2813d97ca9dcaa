"""Host names, addresses, interfaces and ports, without torch and without sending anything."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator

import psutil

from lockstep.errors import BadInput

FIRST_PORT, LAST_PORT = 20000, 60000
CANDIDATES = 16
LOOPBACK = "127.0.0.1"


def split_address(text: str) -> tuple[str, int]:
    """Split `tcp://host:port` or `host:port`."""
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    if not colon or not host or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise BadInput(f"--rendezvous {text!r} is neither host:port nor file:///path: use one of these forms")
    return host.strip("[]"), int(port)


def job_of_parent() -> str:
    """Return a name for a job without one: the process that started its ranks."""
    parent = os.getppid()
    return f"{parent}-{psutil.Process(parent).create_time()}"


def candidate_ports(job: str) -> Iterator[int]:
    """Yield the ports that a job may use, spread over a wide range by a hash of its name."""
    for attempt in range(CANDIDATES):
        word = hashlib.sha256(f"{job}/{attempt}".encode()).digest()
        yield FIRST_PORT + int.from_bytes(word[:4], "big") % (LAST_PORT - FIRST_PORT)


def resolve(host: str) -> str:
    """Return an IP address of a host name, from Slurm if the name service does not know it."""
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
    """Return the NodeAddr that Slurm uses for a node, if scontrol is installed and has another than the name."""
    if shutil.which("scontrol") is None:
        return None
    description = subprocess.run(
        ["scontrol", "show", "node", node], capture_output=True, text=True, timeout=20, check=False
    )
    for word in description.stdout.split():
        name, _, value = word.partition("=")
        if name == "NodeAddr" and value != node:
            return value
    return None


def address_towards(address: str) -> str | None:
    """Return this host's own address on the way to another one, without sending anything."""
    address_family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    with socket.socket(address_family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """Return the network interface that has an address of this host."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return name
    return None


def is_loopback(address: str) -> bool:
    """Say whether an address never leaves its host."""
    return ipaddress.ip_address(address).is_loopback


def listening_address(host: str) -> str:
    """Return where rank 0 listens if it is known as `host`: at that address, and nowhere else.

    Many systems give their own name a loopback address (127.0.1.1), while other hosts get a real one for it. So a name
    (but not `localhost`) with such an address means all addresses of this host.
    """
    address = resolve(host)
    if not is_loopback(address) or host == "localhost" or host.startswith("localhost.") or _is_address(host):
        return address
    return "::" if ":" in address else "0.0.0.0"  # noqa: S104 - see above


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def free_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def listener(address: str, port: int) -> socket.socket:
    """Return a socket that listens on this address and port only."""
    address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    entrance = socket.socket(address_family, socket.SOCK_STREAM)
    try:
        entrance.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        entrance.bind((address, port))
        entrance.listen(1024)
    except OSError:
        entrance.close()
        raise
    return entrance


def reserved_port() -> int:
    """Return a port that no other program gets by chance for the next minute, and that a server can still take.

    A connection that its server's side closes first leaves the port in the state TIME_WAIT: the kernel then gives it to
    nobody who asks for any port, and a server that asks for this one and reuses addresses, as servers do, gets it.
    """
    with listener(LOOPBACK, 0) as entrance:
        port: int = entrance.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)) as client:
            served, _ = entrance.accept()
            served.close()
            client.recv(1)
    return port


def is_free(port: int) -> bool:
    """Say whether a server could listen on this port of every interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
