"""The scripts of tools/, imported as the tests need them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def load(name: str) -> ModuleType:
    """Import ``tools/NAME.py`` under a name that no other module has."""
    spec = importlib.util.spec_from_file_location(
        f"{name.replace('/', '_')}_tool", TOOLS / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
