"""Adafactor, Muon and states in 16 bits: states by closed form, kernels against torch's own optimizers."""

import pytest

from clustersim.scenarios import Scenario
from clustersim.simulator.reading.errors import ScenarioError
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.memory.optimizer import (
    Optimizer,
    moment_bytes,
    newton_schulz,
    optimizer_kernels,
    resident_states,
    state_bytes,
    update_kernels,
)
from clustersim.workloads.operators.operator import ParameterTensor, matrix
from clustersim.workloads.parallelism.fsdp import fsdp
from clustersim.workloads.parallelism.zero import zero

ORDER = Order.parse("0F0,0B0")


def flops(kernels):
    return sum(kernel.flops for kernel in kernels)


def tensors_of(made):
    return made.tensors_of({layer.name for layer in made.layers})


def test_states_of_gpt2_have_a_closed_form():
    """Hidden matrices 12 l h^2; embeddings (V + s) h; biases and norms the rest."""
    made = model("gpt2", "bf16")
    hidden, tables = 12 * 12 * 768**2, (50257 + 1024) * 768
    rest = made.parameters - hidden - tables
    layer = (768 + 2304) + (768 + 768) + (768 + 3072) + (3072 + 768)
    expected = {
        "adam": 8 * made.parameters,
        "muon": 4 * hidden + 8 * (tables + rest),
        "adafactor": 4 * (12 * layer + (50257 + 768) + (1024 + 768) + rest),
        "adafactor_momentum": 4 * (12 * layer + (50257 + 768) + (1024 + 768) + rest) + 4 * made.parameters,
    }
    for name, nbytes in expected.items():
        held = resident_states(tensors_of(made), name, "bf16")
        assert held["optimizer"] == 4 * made.parameters + nbytes, name
        halves = resident_states(tensors_of(made), Optimizer(name, "bf16"), "bf16")
        assert halves["optimizer"] == 4 * made.parameters + nbytes / 2, name


def test_frozen_tensors_have_no_states_and_bad_names_are_told():
    assert moment_bytes(matrix(4, 4, trainable=False), "muon") == 0
    with pytest.raises(ScenarioError, match="adafactor"):
        moment_bytes(ParameterTensor(4), "adafacto")
    with pytest.raises(ScenarioError, match="depend on the shapes"):
        state_bytes("muon", "fp32")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="what an optimizer does is asked of torch itself")


def moved_by(torch, run, least):
    """The bytes that ops of torch read and write in *run*, in tensors of at least *least* elements."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def storages(values):
        kept = (one for one in tree_leaves(values) if isinstance(one, torch.Tensor) and one.numel() >= least)
        return {one.untyped_storage()._cdata: one.numel() * one.element_size() for one in kept}

    class Watch(TorchDispatchMode):
        moved = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            given, made = storages((args, kwargs)), storages(result)
            fresh = {key: size for key, size in made.items() if key not in given}
            pairs = zip(func._schema.arguments, args, strict=False)
            written = [value for one, value in pairs if one.alias_info and one.alias_info.is_write]
            changed = storages(written)
            scalar = isinstance(result, torch.Tensor) and result.numel() < least
            if fresh or changed or scalar:
                self.moved += sum(given.values()) + sum(fresh.values()) + sum(changed.values())
            return result

    with Watch() as seen:
        run()
    return seen.moved


def stepped(torch, make, *shapes):
    """The bytes that the second step of an optimizer on parameters of *shapes* moves, and the optimizer."""
    parameters = [torch.nn.Parameter(torch.randn(*shape)) for shape in shapes]
    optimizer = make(parameters)
    for one in parameters:
        one.grad = torch.randn_like(one)
    optimizer.step()
    return moved_by(torch, optimizer.step, min(one.numel() for one in parameters)), optimizer


@pytest.mark.parametrize("shape", [(256, 512), (4096,)])
def test_adafactor_moves_what_torch_moves(torch, shape):
    seen, optimizer = stepped(torch, lambda given: torch.optim.Adafactor(given, weight_decay=0.0, foreach=True), shape)
    tensor = matrix(*shape) if len(shape) > 1 else ParameterTensor(shape[0])
    moved = sum(kernel.nbytes for kernel in update_kernels([tensor], "adafactor", "fp32"))
    assert moved == pytest.approx(seen, rel=0.02)
    state = next(iter(optimizer.state.values()))
    kept = sum(one.numel() * 4 for one in state.values() if torch.is_tensor(one) and one.numel() > 1)
    assert kept == moment_bytes(tensor, "adafactor")


@pytest.mark.parametrize("shape", [(64, 128), (4096,)])
def test_each_further_tensor_of_adafactor_has_the_norms_and_products_of_torch(torch, shape):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        kernels = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.kernels += func._schema.name in ("aten::linalg_vector_norm", "aten::mm")
            return func(*args, **(kwargs or {}))

    def counted(tensors):
        parameters = [torch.nn.Parameter(torch.randn(*shape)) for _ in range(tensors)]
        optimizer = torch.optim.Adafactor(parameters, weight_decay=0.0, foreach=True)
        for one in parameters:
            one.grad = torch.randn_like(one)
        optimizer.step()
        with Count() as seen:
            optimizer.step()
        return seen.kernels

    def launches(tensors):
        made = [matrix(*shape) if len(shape) > 1 else ParameterTensor(shape[0])] * tensors
        return sum(kernel.launches for kernel in update_kernels(made, "adafactor", "fp32"))

    assert launches(5) - launches(2) == counted(5) - counted(2)


@pytest.mark.parametrize("shape", [(96, 160), (160, 96), (64, 64)])
def test_muon_multiplies_what_torch_multiplies(torch, shape):
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch.optim.Muon came with torch 2.9")
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counted:
        _, optimizer = stepped(torch, torch.optim.Muon, shape)
    kernels = update_kernels([matrix(*shape)], "muon", "fp32")
    assert 2 * flops(kernels) == counted.get_total_flops()
    state = next(iter(optimizer.state.values()))
    assert sum(one.numel() * 4 for one in state.values() if torch.is_tensor(one)) == moment_bytes(
        matrix(*shape), "muon"
    )


def test_the_elementwise_part_of_muon_by_hand():
    """Bytes of an element: two lerps in fp32, the cast to bf16, norm and division in bf16, decay and sum in fp32."""
    elementwise, *_ = update_kernels([matrix(64, 256)], "muon", "fp32")
    lerps, cast, norm, division, decay, added = 2 * (4 + 4 + 4), 4 + 2, 2, 2 + 2, 4 + 4, 2 + 4 + 4
    assert elementwise.nbytes == 64 * 256 * (lerps + cast + norm + division + decay + added)


def test_muon_leaves_embeddings_and_vectors_to_adam():
    made = model("gpt2", "bf16")
    kernels = update_kernels(tensors_of(made), "muon", "bf16")
    h = 768
    sides = [(h, 3 * h), (h, h), (h, 4 * h), (h, 4 * h)]
    assert flops(kernels) == 12 * 5 * sum(4 * r * r * c + 2 * r**3 for r, c in sides)
    assert flops(newton_schulz(3 * h, h)) == flops(newton_schulz(h, 3 * h))
    none = update_kernels([matrix(50257, 768, hidden=False)], "muon", "bf16")
    assert none == optimizer_kernels(50257 * 768, "adam", "bf16")


def test_moonlight_says_that_muon_costs_little():
    """Liu et al. 2025, arXiv:2502.16982, section 2.3: Muon's memory is half of AdamW's states; its gathers are 2 bytes.

    FLOPs: Jordan et al. 2024 give T m / B of those of the model (T = 5 steps, m = the short side, B tokens): below 1 %.
    """
    made = model("llama3_8b", "bf16")
    tokens = 4e6
    assert flops(update_kernels(tensors_of(made), "muon", "bf16")) < 0.01 * made.flops(1) * tokens / 8192


@pytest.mark.parametrize("apply", [zero, fsdp])
def test_shards_are_multiplied_after_a_gather_of_gradients(apply):
    made, ranks = model("gpt2", "bf16"), 4
    whole = compute(made, ORDER, micro_batch_size=1, optimizer="muon")
    program = apply(whole, made, ranks).programs[0]
    hidden = 12 * 12 * 768**2
    (gather,) = [op for op in program.ops if op.name.endswith("matrices")]
    assert (gather.kind, gather.nbytes) == ("all_gather", 2 * hidden)
    (update,) = [
        op for op in program.ops if op.action and op.action.phase == "O" and hasattr(op, "kernels") and op.kernels
    ]
    (before,) = [op for op in whole.programs[0].ops if op.action.phase == "O"]
    assert flops(update.kernels) == flops(before.kernels) / ranks
    assert program.resident["optimizer"] == whole.programs[0].resident["optimizer"] / ranks
    plain = apply(compute(made, ORDER, micro_batch_size=1, optimizer="adam"), made, ranks).programs[0]
    assert not any(op.name.endswith("matrices") for op in plain.ops)


def scenario(data=None, **training):
    return Scenario.model_validate(
        {
            "version": 1,
            "cluster": {"preset": "dgx_a100_80gb", "nodes": 1},
            "model": {"preset": "gpt2"},
            "training": {"global_batch_size": 64, "precision": "bf16", **training},
            "parallelism": {"data": data or {"method": "zero"}},
        }
    )


def test_each_optimizer_runs_and_memory_follows():
    seen = {}
    for name in ("adam", "adam8bit", "adafactor", "adafactor_momentum", "muon"):
        summary = scenario(optimizer=name).run().summary()
        seen[name] = summary["memory"]["peak_bytes"]
    assert seen["adafactor"] < seen["adafactor_momentum"] < seen["muon"] < seen["adam"]
    halves = scenario(optimizer_dtype="bf16").run().summary()["memory"]["peak_bytes"]
    assert seen["adam"] - halves == pytest.approx(4 * 124439808 / 8, rel=0.01)
    with pytest.raises(ScenarioError, match="optimizer_dtype: bf16 is not for adam8bit"):
        scenario(optimizer="adam8bit", optimizer_dtype="bf16")


def test_a_model_without_master_weights_is_trained_in_16_bits():
    """2 bytes of parameters, 2 of gradients and 4 of Adam's states, and whole gradients of FSDP without sync."""
    parameters, replicas = 124439808, 8

    def held(data, **training):
        made = scenario(data, micro_batch_size=1, global_batch_size=2 * replicas, **training)
        return made.schedule().programs[0].resident

    for precision in ("bf16", "fp16"):
        pure = held({"method": "ddp"}, precision=precision, master_weights=False)
        assert [pure[name] / parameters for name in ("parameters", "gradients", "optimizer")] == [2, 2, 4]
    sharded = held({"method": "fsdp"}, master_weights=False)
    assert sharded["optimizer"] == pytest.approx(4 * parameters / replicas)
    assert sharded["gradients"] == pytest.approx(2 * parameters / replicas)
    whole = held({"method": "fsdp", "no_sync": True}, master_weights=False, gradient_dtype="fp32")
    assert whole["gradients"] == pytest.approx(4 * parameters)
    assert whole["optimizer"] == sharded["optimizer"]


@pytest.mark.parametrize(
    ("data", "training", "why"),
    [
        ({"method": "fsdp"}, {"precision": "fp32"}, "one in fp32 is updated as it is"),
        ({"method": "fsdp"}, {"precision": {"matmul": "fp8", "parameters": "fp8"}}, "stored in fp8"),
        ({"method": "fsdp"}, {"offload": {"optimizer": "host"}}, "updated in fp32"),
        ({"method": "local_sgd", "every": 2}, {}, "local_sgd exchanges fp32 weights"),
    ],
)
def test_weights_that_are_not_updated_as_they_are_need_master_weights(data, training, why):
    with pytest.raises(ScenarioError, match=f"master_weights: .*{why}"):
        scenario(data, master_weights=False, **training)
