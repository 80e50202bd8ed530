"""Conditions of launch scripts are evaluated where the script gives their values."""

import shutil
import subprocess

import pytest

from clustersim.scenarios.exchange.shell_commands import commands

SCRIPTS = {
    "chosen": "S=16B\nif [ $S = 671B ]; then\n  H=7168\nelif [ $S = 236B ]; then\n  H=5120\nelse\n  H=2048\nfi\n",
    "middle": 'S="236B"\nif [[ $S == 671B ]]; then H=7168; elif [[ "$S" == 236B ]]; then H=5120; else H=2048; fi\n',
    "first": "S=671B\nif [ $S = 671B ]; then H=7168; elif [ $S = 671B ]; then H=5120; else H=2048; fi\n",
    "numbers": "N=8\nH=1\nif [ $N -gt 1 ]; then H=2; fi\nif [ $N -le 1 ]; then H=3; fi\n",
    "nested": "A=1\nB=2\nH=0\nif [ $A -eq 2 ]; then if [ $B -eq 2 ]; then H=1; else H=4; fi; H=2; else H=3; fi\n",
    "not": 'A=x\nH=0\nif [ ! $A = x ]; then H=1; fi\nif [ -z "$A" ]; then H=2; fi\nif [ -n "$A" ]; then H=5; fi\n',
    "both": "A=1\nH=0\nif [ $A -eq 1 ] && [ $A -lt 2 ]; then H=1; fi\n",
    "loop": "A=1\nH=0\nif [ $A -eq 1 ]\nthen\n  for i in 1 2; do H=$i; done\n  H=7\nfi\n",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_branch_of_the_shell_is_taken(name):
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("bash is not installed")
    told = subprocess.run([shell, "-c", f"{SCRIPTS[name]}echo $H"], capture_output=True, text=True, check=True).stdout
    _, variables = commands(SCRIPTS[name], "x.sh")
    assert [word.text for word in variables["H"]] == [told.strip()]


@pytest.mark.parametrize("condition", ["[ $UNKNOWN = 1 ]", "[ -f file ]", "grep -q x file", "[ $(nproc) -gt 1 ]", "["])
def test_of_unknown_conditions_the_last_branch_holds(condition):
    _, variables = commands(f"if {condition}; then H=1; else H=2; fi\n", "x.sh")
    assert [word.text for word in variables["H"]] == ["2"]


@pytest.mark.parametrize(
    "text", ["fi\nH=1\n", "else\nH=1\n", "elif [ 1 = 2 ]; fi; H=1\n", "if\nH=1\n", "if [ 1 = 1 ]; H=1"]
)
def test_scripts_that_are_not_whole(text):
    _, variables = commands(text, "x.sh")
    assert [word.text for word in variables["H"]] == ["1"]
