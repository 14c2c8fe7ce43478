import torch, tilewright.torch
q, k, v = (torch.randn(2, 1000, 8, 72, device="cuda", dtype=torch.bfloat16) for _ in range(3))
o = tilewright.torch.attention(q, k, v, causal=True)
print(o.shape)
print(tilewright.explain("fwd bf16 b=2 h=8 s=1000 d=72 causal"))
