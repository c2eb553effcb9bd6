"""Which hosts are this machine for certain: there, and only there, secrets may go in clear."""

from __future__ import annotations

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own: 127.0.0.0/8, ::1 or localhost."""
    name = host.strip("[]").lower()
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
