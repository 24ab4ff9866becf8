"""Which of two versions is older: the vendor's and packages'."""

import itertools

import pytest

from checks.doctor import versions
from checks.doctor.document import Missing

ORDERED = [
    "8.2.RC1.alpha002",
    "8.2.RC1",
    "8.2.0",
    "8.3.RC1.alpha001",
    "8.3.RC1.beta1",
    "8.3.RC1",
    "8.3.RC2",
    "8.3",
    "8.5.0",
]
ORDERED += ["23.0.6", "24.1.rc3", "24.1.0", "25.2.1", "25.10.0"]


@pytest.mark.parametrize(("first", "second"), itertools.pairwise(ORDERED))
def test_the_order(first, second):
    assert versions.older(first, second) and not versions.older(second, first)


def test_equal_ones():
    assert versions.same("25.2", "25.2.0") and versions.same("2.7.1+cpu", "2.7.1") and not versions.same("2.7.1", "2.7")


def test_a_text_without_a_number_is_no_version():
    with pytest.raises(Missing, match="expected a version, found 'latest'"):
        versions.older("latest", "8.3")
