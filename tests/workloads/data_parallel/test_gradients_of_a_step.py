"""Gradients from the backward pass to the step, and lists of a foreach optimizer: closed forms, and torch itself."""

import weakref

import pytest

from clustersim.scenarios import Scenario
from clustersim.workloads.memory.optimizer import Optimizer, foreach_bytes


def memory(model="gpt2", size=8, gpus=1, data="ddp", fused="true", **software):
    micro = software.pop("micro_batch_size", size)
    return (
        Scenario.model_validate(
            {
                "version": 1,
                "cluster": {"preset": "dgx_h100", "nodes": 1, "node": {"accelerators": gpus}},
                "model": model if isinstance(model, dict) else {"preset": model, "attention": "flash"},
                "training": {"global_batch_size": size * gpus, "micro_batch_size": micro, "precision": "fp32"},
                "parallelism": {"data": {"method": data}},
                "software": {"preset": "ddp_sdpa", "fused": fused == "true", **software},
            }
        )
        .run()
        .summary()["memory"]
    )


def states(held):
    return {name: held["by_category_bytes"][name] for name in ("parameters", "gradients", "optimizer", "activations")}


def test_activations_and_gradients_are_never_held_whole_together():
    """When activations are most, only the head's gradient is there; the tied table has it from then on."""
    kept, freed = memory(frees_gradients=False), memory(frees_gradients=True)
    whole = states(kept)
    assert kept["peak_bytes"] == sum(whole.values())
    table = 4 * 50257 * 768
    assert whole["gradients"] > 3 * table
    least = kept["peak_bytes"] - whole["gradients"]
    assert least + table <= freed["peak_bytes"] <= least + 1.02 * table


def test_the_step_holds_all_gradients_where_activations_are_few():
    """4 + 4 + 8 bytes a parameter, and 4 of the roots of a foreach implementation."""
    small = {"preset": "gpt2", "attention": "flash", "seq_length": 16}
    count = memory(small, 1, frees_gradients=False)["by_category_bytes"]["parameters"] / 4
    for fused, each in ("true", 16), ("false", 20):
        assert memory(small, 1, fused=fused, frees_gradients=True)["peak_bytes"] == pytest.approx(
            each * count, rel=1e-3
        )


def test_a_second_micro_batch_begins_with_all_gradients():
    kept, freed = (memory(size=4, micro_batch_size=2, frees_gradients=how) for how in (False, True))
    assert freed["peak_bytes"] == kept["peak_bytes"]


def test_shards_of_fsdp_are_freed_too():
    model = {"preset": "llama3_8b", "num_layers": 2, "seq_length": 8192, "attention": "flash"}
    kept, freed = (memory(model, 1, 2, "fsdp", frees_gradients=how) for how in (False, True))
    saved = kept["peak_bytes"] - freed["peak_bytes"]
    assert 0.3 * states(kept)["gradients"] < saved <= states(kept)["gradients"]


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_foreach_optimizer_holds_what_torch_makes(name):
    torch = pytest.importorskip("torch", reason="what an optimizer allocates is asked of torch itself")
    from torch.utils._python_dispatch import TorchDispatchMode

    parameters = [torch.nn.Parameter(torch.randn(64, 128)) for _ in range(3)]
    optimizer = getattr(torch.optim, name)(parameters, lr=0.1, foreach=True)
    for one in parameters:
        one.grad = torch.randn_like(one)
    optimizer.step()

    class Watch(TorchDispatchMode):
        live = most = 0

        def freed(self, nbytes):
            self.live -= nbytes

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            for one in made if isinstance(made, (list, tuple)) else ():
                nbytes = one.numel() * one.element_size()
                self.live += nbytes
                weakref.finalize(one, self.freed, nbytes)
            self.most = max(self.most, self.live)
            return made

    with Watch() as seen:
        optimizer.step()
    kind = {"AdamW": "adam", "SGD": "sgd"}[name]
    assert seen.most == foreach_bytes(kind) * sum(one.numel() for one in parameters)
    assert foreach_bytes(Optimizer(kind, "bf16", master=False)) == foreach_bytes(kind) / 2


def test_sharded_weights_of_4_bits_have_nothing_in_fp32_beside_them():
    """As TRL loads them: alone a model is prepared, with FSDP it is as with kbit_training: false."""
    given = {"preset": "llama3_8b", "num_layers": 2, "seq_length": 512, "lora": {"rank": 8, "quantised": "nf4"}}

    def peak(gpus, *, kbit):
        values = {
            "version": 1,
            "cluster": {"preset": "dgx_h100", "nodes": 1, "node": {"accelerators": gpus}},
            "model": given,
            "training": {"global_batch_size": gpus, "micro_batch_size": 1, "precision": "bf16"},
            "parallelism": {"data": {"method": "fsdp" if gpus > 1 else "ddp"}},
            "software": {"preset": "huggingface", "kbit_training": kbit},
        }
        return Scenario.model_validate(values).run().summary()["memory"]["peak_bytes"]

    assert peak(1, kbit=True) > 1.1 * peak(1, kbit=False)
    assert peak(2, kbit=True) == peak(2, kbit=False)
