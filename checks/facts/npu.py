"""NPUs: what the bus, the driver, npu-smi and hccn_tool say about them."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path

from checks.facts import hccn, smi, version_files
from checks.facts.reading import STEP_SECONDS, at, guarded, is_unknown, output, side_by_side, text_of

VENDOR = "0x19e5"  # Huawei on the PCI bus
# Chips by PCI device id, as the driver's own tools name them: 910B is Atlas A2, 910_93 Atlas A3.
CHIPS = {"0xd801": "910", "0xd802": "910B", "0xd803": "910_93", "0xd500": "310P", "0xd100": "310"}
DRIVER, FIRMWARE = "/usr/local/Ascend/driver", "/usr/local/Ascend/firmware"
MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")


def npu(seconds: float) -> dict:
    inner = seconds - STEP_SECONDS
    found = side_by_side(
        {"smi": partial(_smi, inner), "boards": partial(_boards, inner), "ports": partial(_ports, inner)}, seconds
    )
    return {
        "bus": guarded(_bus),
        "nodes": guarded(_nodes),
        "tool": guarded(_tool),
        "driver": guarded(_version_file, DRIVER),
        "firmware": guarded(_version_file, FIRMWARE),
        **found,
    }


def _bus() -> list[dict]:
    """Accelerators on the PCI bus: there with or without a driver."""
    found = []
    for folder in sorted(at("/sys/bus/pci/devices").glob("*")):
        if text_of(folder / "vendor").strip() == VENDOR:
            device = text_of(folder / "device").strip()
            if device in CHIPS:
                found.append({"address": folder.name, "device": device, "chip": CHIPS[device]})
    return found


def _nodes() -> list[dict]:
    """Device nodes: chips (davinciN) and the three managers."""
    names = [*(path.name for path in at("/dev").glob("davinci[0-9]*")), *MANAGERS]
    found = []
    for path in (at(f"/dev/{name}") for name in sorted(names, key=_natural)):
        if path.exists():
            about = path.stat()
            usable = os.access(path, os.R_OK | os.W_OK)
            owner = {"mode": oct(about.st_mode & 0o777), "user": about.st_uid, "group": about.st_gid}
            found.append({"name": path.name, **owner, "usable": usable})
    return found


def _natural(name: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\D+)(\d*)", name)
    return match[1], int(match[2] or -1)


def _tool() -> str | None:
    """The place of npu-smi; root's folder too, which is not on everybody's path."""
    places = [shutil.which("npu-smi"), *(str(at(f"/usr/local/{folder}/npu-smi")) for folder in ("bin", "sbin"))]
    return next((place for place in places if place and Path(place).exists()), None)


def _version_file(folder: str) -> dict[str, str | None]:
    found = version_files.fields(text_of(at(f"{folder}/version.info")))
    return {**found, "release": version_files.version(found)}


def _smi(seconds: float) -> dict:
    try:
        return smi.info(output("npu-smi", "info", seconds=seconds))
    except RuntimeError as error:
        return {"failed": str(error), "code": smi.error_code(str(error))}
    except FileNotFoundError:
        return {"missing": shutil.which("npu-smi") is None}


def _boards(seconds: float) -> dict[str, dict]:
    """`npu-smi info -t board` of each NPU; those that `npu-smi info -l` names, side by side."""
    listed = output("npu-smi", "info", "-l", seconds=seconds / 2)
    ids = re.findall(r"^\s*NPU ID\s*[:：]\s*(\d+)", listed, re.MULTILINE)
    reads = {one: partial(_board, one, seconds / 2 - STEP_SECONDS) for one in dict.fromkeys(ids)}
    return side_by_side(reads, seconds / 2)


def _board(number: str, seconds: float) -> dict[str, str]:
    return smi.board(output("npu-smi", "info", "-t", "board", "-i", number, seconds=seconds))


def _ports(seconds: float) -> dict[str, dict]:
    """Each NPU's own port: link, address, TLS, health; by number."""
    tool = shutil.which("hccn_tool") or str(at(f"{DRIVER}/tools/hccn_tool"))
    if not Path(tool).exists():
        return hccn.conf(text_of(at("/etc/hccn.conf")))
    numbers = [path.name[len("davinci") :] for path in at("/dev").glob("davinci[0-9]*")]
    keys = [(number, question) for number in sorted(numbers, key=int) for question in hccn.QUESTIONS]
    inner = seconds - STEP_SECONDS
    reads = {f"{number} {question}": partial(_ask, tool, number, question, inner) for number, question in keys}
    answers = side_by_side(reads, seconds)
    found: dict[str, dict] = {}
    for number, question in keys:
        said = answers[f"{number} {question}"]
        found.setdefault(number, {}).update({question: said} if is_unknown(said) else said)
    return found


def _ask(tool: str, number: str, question: str, seconds: float) -> dict:
    return hccn.answer(question, output(tool, "-i", number, f"-{question}", "-g", seconds=seconds))
