"""The vendor's texts: layouts of A2 and A3, several generations, both languages; cut off and garbled none raises."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.facts import hccn, smi, version_files
from tests.checks.conftest import VENDOR


def test_the_table_of_an_a2(vendor):
    found = smi.info(vendor("npu-smi-a2.txt"))
    assert (found["version"], len(found["chips"]), found["processes"]) == ("25.2.1", 8, [])
    assert found["chips"][1] == {
        "npu": 1,
        "name": "910B2",
        "health": "OK",
        "power": 95.6,
        "temperature": 39.0,
        "chip": 0,
        "physical": None,
        "bus": "0000:C2:00.0",
        "aicore": 0.0,
        "hbm_used_mb": 3162,
        "hbm_total_mb": 65536,
    }


def test_the_table_of_an_a3(vendor):
    found = smi.info(vendor("npu-smi-a3.txt"))
    assert [(chip["npu"], chip["chip"], chip["physical"]) for chip in found["chips"][:3]] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
    ]
    assert len(found["chips"]) == 16 and found["chips"][1]["power"] is None


def test_older_tables(vendor):
    found = smi.info(vendor("npu-smi-23.txt"))
    assert found["chips"][0]["health"] == "Warning" and found["chips"][0]["hbm_used_mb"] == 61220
    assert found["processes"] == [{"npu": 0, "chip": 0, "pid": 20154, "name": "python3.11", "memory_mb": 57983}]
    (chip,) = smi.info(vendor("npu-smi-21.txt"))["chips"]
    assert (chip["name"], chip["hbm_total_mb"], chip["aicore"]) == ("310", 8192, 0.0)


def test_a_chinese_table(vendor):
    found = smi.info(vendor("npu-smi-zh.txt"))
    assert found["version"] == "24.1.0" and [chip["health"] for chip in found["chips"]] == ["OK", "Alarm"]
    assert smi.board(vendor("board-zh.txt")) == {
        "software_version": "24.1.0",
        "firmware_version": "7.5.0.2.220",
        "compatibility": "NOT OK",
        "board_id": "0x32",
    }


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("dcmi module initialize failed. ret is -8005", -8005),
        ("dcmi model initialized failed, because the device is used. ret is -8020", -8020),
        ("npu-smi: command not found", None),
    ],
)
def test_codes_of_the_driver(text, code):
    assert smi.error_code(text) == code


def test_a_table_that_is_cut_off_keeps_its_whole_rows(vendor):
    text = vendor("npu-smi-a2.txt")
    counts = [len(smi.info(text[:end])["chips"]) for end in range(0, len(text), 50)]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == 8


def test_lines_end_and_colours(vendor):
    text = "\x1b[32m" + vendor("npu-smi-a2.txt").replace("\n", "\r\n") + "\x1b[0m"
    assert smi.info(text) == smi.info(vendor("npu-smi-a2.txt"))


@pytest.mark.parametrize(
    ("question", "text", "found"),
    [
        ("link", "link status: UP\n", {"link": "UP"}),
        ("link", "链路状态：DOWN", {"link": "DOWN"}),
        ("link", "hccn_tool is busy, please try again later", {}),
        (
            "ip",
            "ipaddr:192.168.100.101\nnetmask:255.255.255.0\n",
            {"address": "192.168.100.101", "netmask": "255.255.255.0"},
        ),
        ("ip", "IP 地址：10.0.0.1\n子网掩码：255.255.0.0", {"address": "10.0.0.1", "netmask": "255.255.0.0"}),
        ("tls", "dev_id:0, tls switch[1](0:disable, 1:enable), tls preconfigured[1](0:non-preset)", {"tls": True}),
        ("tls", "tls switch: disable", {"tls": False}),
        ("net_health", "net health status: Success\n", {"net_health": "Success"}),
        ("net_health", "网络健康状态：Receive timeout", {"net_health": "Receive timeout"}),
    ],
)
def test_answers_of_hccn_tool(question, text, found):
    assert hccn.answer(question, text) == found


def test_hccn_conf():
    found = hccn.conf("address_0=10.20.0.11\nnetmask_0=255.255.255.0\naddress_11 = 10.20.11.11\nbroken\n")
    assert found == {"0": {"address": "10.20.0.11", "netmask": "255.255.255.0"}, "11": {"address": "10.20.11.11"}}


def test_version_files(vendor):
    driver = version_files.fields(vendor("driver-version.info"))
    assert version_files.version(driver) == "25.2.1" and driver["innerversion"] == "V100R001C21SPC003B220"
    toolkit = version_files.fields(vendor("ascend_toolkit_install.info"))
    assert (toolkit["version"], toolkit["arch"]) == ("8.3.RC1", "aarch64")
    assert version_files.version(version_files.fields(vendor("nnal-version.info"))) == "8.3.RC1"
    running = version_files.running(vendor("version.cfg"))
    assert running["toolkit"] == running["opp_kernel"] == "8.3.RC1"
    assert version_files.running("toolkit_running_version=8.1.RC1") == {"toolkit": "8.1.RC1"}


SAMPLES = [file.read_text(encoding="utf-8") for file in sorted(VENDOR.iterdir())]
PARSERS = [
    smi.info, smi.board, smi.error_code, version_files.fields, version_files.running, hccn.conf,
    lambda text: version_files.version(version_files.fields(text)),
    *(lambda text, question=question: hccn.answer(question, text) for question in hccn.QUESTIONS),
]  # fmt: skip


@st.composite
def garbled(draw):
    """A vendor's text with a part cut out and another text put in its place, or any text at all."""
    text = draw(st.sampled_from(SAMPLES))
    first, last = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    return text[:first] + draw(st.text(max_size=30)) + text[last:]


@settings(max_examples=60, deadline=None)
@given(garbled() | st.text())
def test_nothing_raises(text):
    for parse in PARSERS:
        json.dumps(parse(text))
