"""What `hccn_tool -i N -… -g` prints about an NPU's own network port, text to facts; and `/etc/hccn.conf`."""

from __future__ import annotations

import re

QUESTIONS = ("link", "ip", "tls", "net_health")

LINK = re.compile(r"(?:link\s*status|链路状态|link)\s*[:：]\s*(UP|DOWN)", re.IGNORECASE)
ADDRESS = re.compile(r"(?:ip\s*addr(?:ess)?|IP\s*地址)\s*[:：]\s*([\da-fA-F.:]+)", re.IGNORECASE)
NETMASK = re.compile(r"(?:netmask|子网掩码|掩码)\s*[:：]\s*([\d.]+)", re.IGNORECASE)
TLS = re.compile(r"(?:tls\s*switch|tls\s*开关|TLS状态)\s*\[?\s*[:：]?\s*(\d|enable|disable)", re.IGNORECASE)
HEALTH = re.compile(r"(?:net\s*health\s*status|网络健康状态)\s*[:：]\s*(.+?)\s*$", re.IGNORECASE | re.MULTILINE)
CONF = re.compile(r"^\s*(address|netmask|gateway|netdetect)_(\d+)\s*=\s*(\S+)", re.MULTILINE)


def answer(question: str, text: str) -> dict:
    """The facts in one answer; empty where the text holds none."""
    return {"link": _link, "ip": _address, "tls": _tls, "net_health": _health}[question](text)


def conf(text: str) -> dict[str, dict[str, str]]:
    """`/etc/hccn.conf`: address, netmask and gateway by NPU."""
    found: dict[str, dict[str, str]] = {}
    for name, number, value in CONF.findall(text):
        found.setdefault(number, {})[name] = value
    return found


def _link(text: str) -> dict:
    match = LINK.search(text)
    return {"link": match[1].upper()} if match else {}


def _address(text: str) -> dict:
    address, netmask = ADDRESS.search(text), NETMASK.search(text)
    found = {"address": address[1]} if address else {}
    return {**found, "netmask": netmask[1]} if netmask else found


def _tls(text: str) -> dict:
    match = TLS.search(text)
    return {"tls": match[1].lower() in ("1", "enable")} if match else {}


def _health(text: str) -> dict:
    match = HEALTH.search(text)
    return {"net_health": match[1]} if match else {}
