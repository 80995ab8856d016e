"""Makes a small Llama with random weights, so that real servers can be run without downloading anything.

    python tests/servers/make_model.py DIR              # needs torch and transformers
    python tests/servers/make_model.py DIR --gguf FILE  # the same tokenizer, weights of its own; needs gguf and numpy
    python tests/servers/make_model.py DIR --small      # on a CPU its steps take as long as those of models in use
    python tests/servers/make_model.py DIR --medium     # and on a fast one
    python tests/servers/make_model.py DIR --large      # on a CUDA device, in bfloat16

1.5 million parameters; --small: 14 million; --medium: 75 million; --large: 1 billion. The tokenizer is a byte-level BPE
of ASCII: whatever comes out is text, a piece for each token.
"""

from __future__ import annotations

import argparse
import json
import random
import string
from pathlib import Path
from typing import Any

LAYERS, HIDDEN, HEADS, FEED, CONTEXT = 2, 256, 4, 512, 4096
TINY = {
    **{"hidden_size": HIDDEN, "intermediate_size": FEED, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS},
    **{"num_key_value_heads": HEADS, "max_position_embeddings": CONTEXT},
}
SMALL = {
    **{"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "num_attention_heads": 8},
    **{"num_key_value_heads": 8, "max_position_embeddings": CONTEXT},
}
MEDIUM = {
    **{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 8, "num_attention_heads": 12},
    **{"num_key_value_heads": 12, "max_position_embeddings": CONTEXT},
}
LARGE = {
    **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32},
    **{"num_key_value_heads": 8, "max_position_embeddings": 16384},
}
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"
SPECIAL = ["<unk>", "<s>", "</s>"]
WORDS = ("token", "late", "pause", "stream", "engine", "heap", "model", "server", "clock", "gap", "queue", "why")


def main() -> None:
    """Writes what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--gguf", type=Path)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", dest="size", action="store_const", const=SMALL, default=TINY)
    size.add_argument("--medium", dest="size", action="store_const", const=MEDIUM)
    size.add_argument("--large", dest="size", action="store_const", const=LARGE)
    options = parser.parse_args()
    if options.gguf is None:
        write_huggingface(options.directory, options.size)
    else:
        write_gguf(options.directory, options.gguf)


def write_huggingface(directory: Path, size: dict[str, int]) -> None:
    """A directory as transformers, vLLM and SGLang load it."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    rng = random.Random(1)
    text = [" ".join(rng.choice(WORDS) for _ in range(20)) for _ in range(200)] + [string.printable]
    raw = Tokenizer(models.BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.train_from_iterator(text, trainers.BpeTrainer(vocab_size=328, special_tokens=SPECIAL, initial_alphabet=[]))
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=2, pad_token_id=2, tie_word_embeddings=False,
        **size,
    )  # fmt: skip
    on_device = size is LARGE
    with torch.device("cuda" if on_device else "cpu"):
        model = LlamaForCausalLM(config)
    if on_device:
        model.to(torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight[:3] = 0  # so that no special token is the likeliest: no answer ends early
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=2, do_sample=False)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def write_gguf(directory: Path, file: Path) -> None:
    """A file as llama.cpp loads it."""
    import numpy
    from gguf import GGUFWriter, TokenType

    bpe: dict[str, Any] = json.loads((directory / "tokenizer.json").read_text())["model"]
    tokens = sorted(bpe["vocab"], key=bpe["vocab"].__getitem__)
    rng = numpy.random.default_rng(1)

    def weights(*shape: int) -> Any:
        return (rng.standard_normal(shape) * 0.02).astype(numpy.float32)

    writer = GGUFWriter(file, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [TokenType.CONTROL if name.startswith("<") and len(name) > 1 else TokenType.NORMAL for name in tokens]
    )
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in bpe["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    ones = numpy.ones(HIDDEN, numpy.float32)
    output = weights(len(tokens), HIDDEN)
    output[:3] = 0
    writer.add_tensor("token_embd.weight", weights(len(tokens), HIDDEN))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", output)
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", weights(HIDDEN, HIDDEN))
        for name, shape in (("gate", (FEED, HIDDEN)), ("up", (FEED, HIDDEN)), ("down", (HIDDEN, FEED))):
            writer.add_tensor(f"blk.{layer}.ffn_{name}.weight", weights(*shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
