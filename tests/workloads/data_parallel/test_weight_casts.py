"""Weights in 16 bits: copies that autocast makes, adapters that are updated as they are; closed forms, and torch."""

import weakref

import pytest

from clustersim.scenarios import Scenario

LAYERS, WIDTH = 4, 16
WIDE, DEEP, WORDS, LENGTH = 1024, 6, 512, 64


def memory(software="ddp_sdpa", lora=None, **training):
    """The memory of a step of a small GPT; with few positions its peak is at the optimizer step."""
    model = {
        "num_layers": DEEP,
        "hidden_size": WIDE,
        "num_attention_heads": 16,
        "seq_length": LENGTH,
        "vocab_size": WORDS,
        "attention": "flash",
        "tie_embeddings": False,
        "position_embedding_type": "rope",
        "add_bias_linear": False,
        "lora": lora,
    }
    specification = {
        "version": 1,
        "cluster": {"preset": "dgx_h100", "nodes": 1, "node": {"accelerators": 1}},
        "model": model,
        "training": {"global_batch_size": 1, "precision": "bf16", "optimizer": "adam", **training},
        "parallelism": {"data": {"method": "ddp"}},
        "software": {"preset": software, "fused": ["optimizer"], "gradient_buffers": "none"},
    }
    scenario = Scenario.model_validate(specification)
    trained = [t.count for layer in scenario.model.layers for t in layer.tensors if t.trainable]
    return scenario.run().summary()["memory"], sum(trained)


def test_the_optimizer_step_finds_weights_gradients_and_states_in_fp32_alone():
    """4 + 4 + 8 bytes a parameter; the last backward pass of a layer has all gradients beside its copies."""
    held, count = memory()
    assert 16 * count <= held["peak_bytes"] <= 16 * count + 2.05 * count / DEEP


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_last_forward_pass_finds_copies_of_all_but_the_embedding(recompute):
    """With a second micro-batch gradients are there as well: 16 bytes a parameter, and 2 of each in a product."""
    held, count = memory(recompute=recompute, global_batch_size=2, micro_batch_size=1)
    copies = held["by_category_bytes"]["parameters"]
    assert copies == pytest.approx(2 * (count - WORDS * WIDE), rel=1e-3)
    assert held["peak_bytes"] == pytest.approx(16 * count + copies + held["by_category_bytes"]["activations"], rel=1e-6)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_adapters_in_16_bits_are_updated_as_they_are(recompute):
    """2 + 2 + 4 bytes a parameter; of adapters in fp32 4 + 4 + 8, and 2 of a copy, which the loss still finds."""
    for software, each in ("huggingface", 8), ("huggingface_2025", 18):
        few, many = (
            memory(
                software,
                {"rank": rank, "targets": "all"},
                global_batch_size=2,
                micro_batch_size=1,
                recompute=recompute,
            )
            for rank in (256, 512)
        )
        more = sum(many[0]["by_category_bytes"][name] - few[0]["by_category_bytes"][name] for name in STATES)
        assert more == pytest.approx(each * (many[1] - few[1]), rel=1e-6)


STATES = ("parameters", "gradients", "optimizer")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="what autocast holds is asked of torch itself")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("recompute", "after"), [(False, LAYERS), (True, 0)])
def test_torch_holds_copies_from_forward_to_backward_pass_unless_layers_are_recomputed(torch, recompute, after):
    """Alive at the end of the forward pass, behind it, and at the end of the backward pass."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    class Casts(TorchDispatchMode):
        live = 0

        def freed(self):
            self.live -= 1

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            if function is torch.ops.aten._to_copy.default and made.shape == (WIDTH, WIDTH):
                self.live += made.dtype == torch.bfloat16
                if made.dtype == torch.bfloat16:
                    weakref.finalize(made, self.freed)
            return made

    layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    seen = []
    with Casts() as casts:
        first = x = torch.randn(2 * WIDTH, WIDTH, requires_grad=True)
        first.register_hook(lambda _: seen.append(casts.live))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in layers:
                x = checkpoint(layer.__call__, x, use_reentrant=True) if recompute else layer(x)
            seen.append(casts.live)
        seen.append(casts.live)
        x.float().sum().backward()
    assert seen == [LAYERS, after, 0]


def test_torch_updates_16_bits_with_states_of_16_bits(torch):
    parameter = torch.nn.Parameter(torch.zeros(8, 8, dtype=torch.bfloat16))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    optimizer.step()
    states = [one for one in optimizer.state[parameter].values() if one.numel() > 1]
    held = [parameter, parameter.grad, *states]
    assert sum(one.numel() * one.element_size() for one in held) == 8 * parameter.numel()
