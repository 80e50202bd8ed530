"""Configurations as published, reduced to documented values, and the parameters of their models.

Each model's keys are those of its ``config.json`` on Hugging Face; parameters are those of the checkpoint (sums of the
tensors of the safetensors index) without buffers.
"""

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5,
}


def llama(layers, hidden, heads, kv, inner, length, vocabulary, **more):
    """The configuration of a model with Llama's keys."""
    return {
        **LLAMA,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "max_position_embeddings": length,
        "vocab_size": vocabulary,
        **more,
    }


def gpt2(layers, hidden, heads):
    """The configuration of a GPT-2."""
    return {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": layers,
        "n_embd": hidden,
        "n_head": heads,
        "n_positions": 1024,
        "n_ctx": 1024,
        "vocab_size": 50257,
        "resid_pdrop": 0.1,
    }


def bert(layers, hidden, heads):
    """The configuration of a BERT, uncased, as it is pre-trained: masked words and next sentence."""
    return {
        "model_type": "bert",
        "architectures": ["BertForPreTraining"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "max_position_embeddings": 512,
        "vocab_size": 30522,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
    }


def bloom(layers, hidden, heads):
    """The configuration of a BLOOM."""
    return {
        "model_type": "bloom",
        "n_layer": layers,
        "hidden_size": hidden,
        "n_head": heads,
        "vocab_size": 250880,
        "apply_residual_connection_post_layernorm": False,
    }


QWEN2 = {"model_type": "qwen2", "use_sliding_window": False}
QWEN3 = {"model_type": "qwen3", "head_dim": 128}

MODELS = {
    "llama2_7b": (llama(32, 4096, 32, 32, 11008, 4096, 32000), 6_738_415_616),
    "llama2_13b": (llama(40, 5120, 40, 40, 13824, 4096, 32000), 13_015_864_320),
    "llama2_70b": (llama(80, 8192, 64, 8, 28672, 4096, 32000), 68_976_648_192),
    "llama3_8b": (llama(32, 4096, 32, 8, 14336, 8192, 128256), 8_030_261_248),
    "llama3_70b": (llama(80, 8192, 64, 8, 28672, 8192, 128256), 70_553_706_496),
    "llama3_405b": (llama(126, 16384, 128, 8, 53248, 131072, 128256), 405_853_388_800),
    "llama3_2_1b": (llama(16, 2048, 32, 8, 8192, 131072, 128256, tie_word_embeddings=True), 1_235_814_400),
    "deepseek_llm_7b": (llama(30, 4096, 32, 32, 11008, 4096, 102400), 6_910_365_696),
    "deepseek_llm_67b": (llama(95, 8192, 64, 8, 22016, 4096, 102400), 67_425_001_472),
    "mistral_7b": (llama(32, 4096, 32, 8, 14336, 32768, 32768, model_type="mistral"), 7_248_023_552),
    "mistral_7b_v01": (
        llama(32, 4096, 32, 8, 14336, 32768, 32000, model_type="mistral", sliding_window=4096),
        7_241_732_096,
    ),
    "qwen2_7b": (llama(28, 3584, 28, 4, 18944, 131072, 152064, **QWEN2), 7_615_616_512),
    "qwen2_0_5b": (llama(24, 896, 14, 2, 4864, 131072, 151936, **QWEN2, tie_word_embeddings=True), 494_032_768),
    "qwen3_8b": (llama(36, 4096, 32, 8, 12288, 40960, 151936, **QWEN3), 8_190_735_360),
    "qwen3_0_6b": (llama(28, 1024, 16, 8, 3072, 40960, 151936, **QWEN3, tie_word_embeddings=True), 596_049_920),
    "gpt2": (gpt2(12, 768, 12), 124_439_808),
    "gpt2_xl": (gpt2(48, 1600, 25), 1_557_611_200),
    "bert_base": (bert(12, 768, 12), 110_106_428),
    "bert_large": (bert(24, 1024, 16), 336_226_108),
    "bloom_560m": (bloom(24, 1024, 16), 559_214_592),
    "bloom_176b": (bloom(70, 14336, 112), 176_247_271_424),
}
"""Configuration and parameters by name."""
