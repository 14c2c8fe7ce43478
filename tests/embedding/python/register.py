tilewright.torch.register()                # once
model = AutoModelForCausalLM.from_pretrained(NAME, attn_implementation="tilewright")
tilewright.torch.register(sdpa=True)       # and in the place of torch's scaled_dot_product_attention
