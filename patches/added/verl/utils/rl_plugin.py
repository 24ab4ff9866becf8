"""MindSpeed-RL's plugin for verl, loaded where it is installed.

Its own setup adds the import to verl/__init__.py, and only prints a line where it does not find that file.
"""

from importlib.util import find_spec


def activate() -> None:
    """Imports the plugin where it is installed; raises AssertionError where it does not take effect."""
    if find_spec("verl_npu") is None:
        return
    import verl_npu  # noqa: F401
    from transformers.integrations import npu_flash_attention

    missing = [n for n in ("index_first_axis", "pad_input", "unpad_input") if not hasattr(npu_flash_attention, n)]
    assert not missing, (
        f"verl_npu is installed: expected it to give {', '.join(missing)} to transformers.integrations."
        "npu_flash_attention, found them missing; install the plugin that belongs to this verl, or uninstall it"
    )
