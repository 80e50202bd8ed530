"""What FSDP holds under reentrant checkpoints of layers with frozen weights: closed forms, and torch itself."""

import gc

import pytest

from clustersim.scenarios import Scenario

LAYERS, ROWS, WIDTH = 5, 32, 16


def memory(num_layers, *, reentrant, method="fsdp", frozen=True):
    """The memory of a step of a wide, deep model with few words, so that its peak is in the backward pass of layers."""
    model = {
        "preset": "llama3_8b",
        "num_layers": num_layers,
        "seq_length": 8192,
        "vocab_size": 128,
        "attention": "flash",
        "lora": {"rank": 8, "targets": ["query"]} if frozen else None,
    }
    specification = {
        "version": 1,
        "cluster": {"preset": "dgx_h100", "nodes": 1, "node": {"accelerators": 2}},
        "model": model,
        "training": {
            "global_batch_size": 2,
            "micro_batch_size": 1,
            "precision": "bf16",
            "master_weights": False,
            "recompute": "full",
        },
        "parallelism": {"data": {"method": method}},
        "software": {"preset": "huggingface_2025", "reentrant": reentrant},
    }
    return Scenario.model_validate(specification).run().summary()["memory"]


def test_each_layer_leaves_its_input_and_the_gradient_of_it():
    """The last backward pass begins with the inputs of all layers, and with the gradients of all but its own."""
    plain, held = (memory(32, reentrant=how) for how in (False, True))
    given = 2 * 8192 * 4096
    assert held["peak_bytes"] - plain["peak_bytes"] == pytest.approx(31 * given, rel=0.05)


@pytest.mark.parametrize("other", [{"method": "ddp"}, {"frozen": False}])
def test_nothing_is_held_without_fsdp_or_with_trained_weights(other):
    plain, held = (memory(4, reentrant=how, **other) for how in (False, True))
    assert held == plain


@pytest.fixture
def fsdp():
    torch = pytest.importorskip("torch", reason="what FSDP holds is asked of torch itself")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch has no gloo")
    from torch.distributed.fsdp import FullyShardedDataParallel

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield FullyShardedDataParallel
    torch.distributed.destroy_process_group()


def held_at_the_end(fsdp, *, reentrant, frozen):
    """Return how many tensors of a layer's input are alive when the backward pass reaches the first input."""
    import torch
    from torch.utils.checkpoint import checkpoint

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base = torch.nn.Linear(WIDTH, WIDTH, bias=False)
            self.adapter = torch.nn.Linear(WIDTH, WIDTH, bias=False)
            self.base.weight.requires_grad_(not frozen)

        def forward(self, x):
            return torch.relu(self.base(x) + self.adapter(x))

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer.__call__, x, use_reentrant=reentrant)
            return x

    def wrapped(module, recurse, nonwrapped_numel):
        # PEFT, utils/other.py, fsdp_auto_wrap_policy: layers, and each trained leaf beside frozen weights
        return (
            recurse
            or isinstance(module, Layer)
            or (frozen and getattr(module, "weight", None) is not None and module.weight.requires_grad)
        )

    model = fsdp(Layers(), auto_wrap_policy=wrapped, use_orig_params=True, device_id=torch.device("cpu"))
    counts = []

    def count(gradient):
        tensors = (one for one in gc.get_objects() if isinstance(one, torch.Tensor) and one.shape == (ROWS, WIDTH))
        counts.append(len({one.data_ptr() for one in tensors}))

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    x.register_hook(count)
    model(x).sum().backward()
    return counts[0]


@pytest.mark.filterwarnings("ignore")
def test_torch_holds_both_of_each_layer_only_where_the_simulator_does(fsdp):
    assert held_at_the_end(fsdp, reentrant=True, frozen=True) == 2 * LAYERS
    for reentrant, frozen in (True, False), (False, True):
        assert held_at_the_end(fsdp, reentrant=reentrant, frozen=frozen) == 2
