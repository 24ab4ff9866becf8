"""What npu-smi prints, text to facts.

The table of `npu-smi info` is told by its bars and by what stands between them, not by columns: widths, headings and
their language differ between driver generations. Text that is cut off or garbled gives the rows that are whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

VERSION = re.compile(r"npu-smi\s+v?(\d[\w.+-]*)|(?:Version|版本)\s*[:：]\s*(\d[\w.+-]*)", re.IGNORECASE)
PAIR = re.compile(r"(\d+)\s*/\s*(\d+)")
BUS = re.compile(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
FIELD = re.compile(r"^[\s|]*([^:：|]+?)\s*[:：]\s*(.*?)[\s|]*$")
CODE = re.compile(r"-?80\d\d\b")

HEALTH = {"正常": "OK", "警告": "Warning", "告警": "Alarm", "严重": "Critical", "紧急": "Critical", "未知": "UNKNOWN"}
WORDS = {  # fields of `npu-smi info -t board`, the same in both languages
    "software_version": ("software version", "软件版本"),
    "firmware_version": ("firmware version", "固件版本"),
    "compatibility": ("compatibility", "兼容性"),
    "board_id": ("board id", "单板 id", "单板id"),
    "product_name": ("product name", "产品名称"),
    "pci_device": ("pci device id", "pci 设备 id"),
}


def info(text: str) -> dict:
    """`npu-smi info`: its version, the chips, what runs on them."""
    chips: list[dict] = []
    processes: list[dict] = []
    for line in _lines(text):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        words = cells[0].split()
        if len(cells) == 3 and BUS.fullmatch(cells[1]) and words and chips and "bus" not in chips[-1]:
            chips[-1].update(_second_row(words, cells))
        elif len(cells) == 3 and len(words) == 2 and words[0].isdigit() and not PAIR.search(cells[1]):
            chips.append(_first_row(words, cells))
        elif len(cells) >= 3 and cells[1].isdigit() and words and all(word.isdigit() for word in words):
            processes.append(_process(words, cells))
    match = VERSION.search(text)
    return {
        "version": (match[1] or match[2]) if match else None,
        "chips": [chip for chip in chips if "bus" in chip],
        "processes": processes,
    }


def board(text: str) -> dict[str, str]:
    """`npu-smi info -t board -i N`: the fields that checks look at."""
    found = {}
    for line in _lines(text):
        match = FIELD.match(line)
        if match:
            for name, spellings in WORDS.items():
                if match[1].strip().lower() in spellings:
                    found[name] = HEALTH.get(match[2], match[2])
    return found


def error_code(text: str) -> int | None:
    """The code of a driver's error, -8005 for example, in what npu-smi says when it fails."""
    match = CODE.search(text)
    return -abs(int(match[0])) if match else None


def _lines(text: str) -> Iterator[str]:
    for line in re.split(r"[\r\n]+", text.replace("｜", "|")):
        yield re.sub(r"\x1b\[[0-9;]*m", "", line)


def _first_row(words: list[str], cells: list[str]) -> dict:
    """`0  910B2 | OK | 94.6  38  0 / 0`"""
    numbers = PAIR.sub("", cells[2]).split()
    return {
        "npu": int(words[0]),
        "name": words[1],
        "health": HEALTH.get(cells[1], cells[1]),
        "power": _number(numbers[0]) if numbers else None,
        "temperature": _number(numbers[1]) if len(numbers) > 1 else None,
    }


def _second_row(words: list[str], cells: list[str]) -> dict:
    """`0 | 0000:C1:00.0 | 0  0 / 0  3161 / 65536`; an A3's begins with chip and physical id."""
    pairs = [(int(used), int(total)) for used, total in PAIR.findall(cells[2])]
    used, total = pairs[-1] if pairs else (None, None)  # HBM is the last pair, or the only one
    first = PAIR.sub("", cells[2]).split()
    return {
        "chip": int(words[0]) if words[0].isdigit() else None,
        "physical": int(words[1]) if len(words) > 1 and words[1].isdigit() else None,
        "bus": cells[1].upper(),
        "aicore": _number(first[0]) if first else None,
        "hbm_used_mb": used,
        "hbm_total_mb": total,
    }


def _process(words: list[str], cells: list[str]) -> dict:
    """`0  0 | 3054 | python3 | 1234`"""
    memory = cells[3] if len(cells) > 3 else ""
    return {
        "npu": int(words[0]),
        "chip": int(words[1]) if len(words) > 1 else None,
        "pid": int(cells[1]),
        "name": cells[2],
        "memory_mb": int(memory) if memory.isdigit() else None,
    }


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "-" where a chip has no sensor of its own
