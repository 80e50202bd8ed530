"""What commands print and write is what is stored; `tests/golden/text.py` says when it may be stored anew."""

from __future__ import annotations

import pytest

from tests.golden.text import CASES, FOLDER, printed
from tests.samples import sample

HEAVY = (
    "advice_llama3_8b_131k_32h100",
    "advice_mixtral_8x7b_dgx_h100",
    "plan_lecture_3d_32gpus",
    "plan_llama3_8b_fsdp_dgx_h100",
    "run_gpt_6_7b_64a100",
)
"""Cases that take more than 1.5 s of processor time."""


@pytest.mark.parametrize("name", sample(CASES, heavy=HEAVY))
def test_the_text_is_that_stored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert printed(name) == (FOLDER / f"{name}.txt").read_text()


def test_every_stored_text_is_a_case() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(CASES)
