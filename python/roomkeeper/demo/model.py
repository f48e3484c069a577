"""A model directory that is only a tokenizer: what a gateway wants to see of a model.

A word is a token. The files are written by hand, so no tokenizer library is needed for them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

VOCABULARY = 1024
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
ROLES = ("user", "assistant", "system")
CONTEXT = 32768
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }} {{ message['content'] }} {% endfor %}"
    "assistant"
)


def write_model(directory: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    _write(directory / "tokenizer.json", _tokenizer())
    _write(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": "<pad>",
            "bos_token": "<s>",
            "eos_token": "</s>",
            "unk_token": "<unk>",
            "model_max_length": CONTEXT,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write(
        directory / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": VOCABULARY,
            "max_position_embeddings": CONTEXT,
            "bos_token_id": SPECIAL.index("<s>"),
            "eos_token_id": SPECIAL.index("</s>"),
        },
    )


def words() -> list[str]:
    """The vocabulary, by id."""
    fixed = [*SPECIAL, *ROLES]
    return fixed + [f"w{number}" for number in range(VOCABULARY - len(fixed))]


def _tokenizer() -> dict[str, Any]:
    special = [
        {
            "id": number,
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, word in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words())},
            "unk_token": "<unk>",
        },
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
