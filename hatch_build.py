"""Build hook: compiles the native layer into the package where a C++ compiler is; without one nothing is compiled."""

import importlib.util
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeLayer(BuildHookInterface[Any]):
    """Compiles before the wheel is put together, for editable installs too."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002  (the hook's signature)
        """Compile; mark the wheel as one for this platform if anything was."""
        source = Path(self.root) / "src/outrider/models/native/build.py"
        spec = importlib.util.spec_from_file_location("native_build", source)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        built = module.build()
        if built:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{self._platform()}"
            build_data["artifacts"].extend(f"/{path.relative_to(self.root)}" for path in built)

    def _platform(self) -> str:
        from packaging.tags import sys_tags

        return next(sys_tags()).platform
