"""Help and planning start fast and without the training libraries: none of them is imported until it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "rpeg"
TORCH_ROOMS = ("numerics", "runtime")
HEAVY = (
    *("torch", "transformers", "tokenizers", "safetensors", "peft", "accelerate", "ray"),
    *("datasets", "pandas", "pyarrow", "reasoning_gym", "math_verify", "sympy"),
    *("tensorboardX", "vl_convert", "matplotlib"),
)
REPORT = f"""
import json, sys
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""


def heavy_after(code: str, *arguments: str) -> list[str]:
    """Run ``code`` in an interpreter of its own and return which of the heavy libraries it has imported."""
    run = subprocess.run([sys.executable, "-c", code + REPORT, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def light_modules() -> list[str]:
    """Return the modules that must work without torch."""
    paths = [path.relative_to(PACKAGE.parent).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))]
    light = [path for path in paths if path.parts[1] not in TORCH_ROOMS and path.name != "__main__"]
    return [".".join(path.parts).removesuffix(".__init__") for path in light]


def test_importing_the_package_is_light() -> None:
    assert heavy_after("import rpeg") == []


def test_every_module_outside_the_torch_rooms_is_light() -> None:
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    assert heavy_after(code, *light_modules()) == []


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"]], ids=" ".join)
def test_help_is_light(arguments: list[str]) -> None:
    code = "import sys\nfrom rpeg.cli.main import main\nsys.argv[0] = 'rpeg'\ntry: main()\nexcept SystemExit: pass"
    assert heavy_after(code, *arguments) == []


def test_a_run_without_an_adapter_does_not_wait_for_peft() -> None:
    assert "peft" not in heavy_after("import rpeg.runtime.run")


def test_a_heavy_import_is_noticed() -> None:
    assert heavy_after("import sys, types; sys.modules['ray'] = types.ModuleType('ray')") == ["ray"]
