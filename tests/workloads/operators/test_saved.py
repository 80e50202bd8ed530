"""What GELU and the loss keep, hold and move: by hand, and against torch, which is watched op by op on the CPU."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from clustersim.simulator.analysis.memory import bound
from clustersim.simulator.hardware.accelerator import Software
from clustersim.simulator.schedule.pipeline_order import Order
from clustersim.workloads.architectures.shape import Mlp, Norm, SelfAttention, Shape
from clustersim.workloads.architectures.specification import model
from clustersim.workloads.architectures.transformer import transformer
from clustersim.workloads.memory.compute import compute
from clustersim.workloads.operators.elementwise import cast, gelu, residual, rms_norm, rotary, swiglu
from clustersim.workloads.operators.embedding_and_loss import CHUNKS, cross_entropy
from clustersim.workloads.software_stack import software
from tests.watched import watched

ROWS, CLASSES, HIDDEN = 64, 1000, 4
WIDTHS = {"bf16": 2, "fp32": 4}


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="what autograd keeps is asked of torch itself")


def new_gelu(x):
    """The tanh form, written out in the order of Hugging Face's NewGELUActivation."""
    return 0.5 * x * (1.0 + (math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.pow(3.0))).tanh())


def new_gelu_under_autocast(x):
    """With the casts of autocast written out: of the power's input, and of that of the product behind."""
    return (0.5 * x * (1.0 + (math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.float().pow(3.0))).tanh())).to(x.dtype)


def test_autocast_runs_a_power_in_fp32_and_all_that_is_made_of_it(torch):
    """The autocast of CUDA, asked with tensors that have no data, calls what is written out here."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    def kinds(function, device):
        x, found = torch.empty(8, 8, dtype=torch.bfloat16, device=device), []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                result = func(*args, **(kwargs or {}))
                if func.namespace == "aten":
                    found.append((func.overloadpacket.__name__, result.dtype))
                return result

        with Watch(), torch.no_grad():
            function(x)
        return found

    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    with FakeTensorMode():
        try:
            torch.set_autocast_dtype("cuda", torch.bfloat16)
            torch.set_autocast_enabled("cuda", True)
            seen = kinds(new_gelu, "cuda")
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
    # the product behind casts
    assert seen == kinds(new_gelu_under_autocast, "cpu")[:-1]


@pytest.mark.parametrize("precision", WIDTHS)
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("written_out", [True, False])
def test_gelu_is_what_torch_does(torch, precision, written_out, autocast):
    x = torch.randn(ROWS, CLASSES, dtype=getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[precision]))
    x.requires_grad_()
    own = new_gelu_under_autocast if autocast else new_gelu
    function = own if written_out else torch.nn.functional.gelu
    saved = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
        y = function(x)
    made, operator = [], gelu(ROWS * CLASSES, precision, written_out=written_out, autocast=autocast)
    assert sum(t.numel() * t.element_size() for t in saved.values()) == operator.kept_bytes(1)
    gradient = torch.ones_like(y)
    forward = watched(torch, lambda: made.append(function(x)), least=x.numel())
    backward = watched(torch, lambda: torch.autograd.grad(made[0], x, gradient), least=x.numel())
    for kernels, seen in ((operator.forward(1), forward), (operator.backward_input(1), backward)):
        assert totals(kernels) == (seen.kernels, seen.moved)
        assert sum(kernel.accesses for kernel in kernels) == seen.accesses


TORCH_NAMES = {"pow": "power", "mul": "multiply", "add": "add", "tanh": "tanh", "tanh_backward": "tanh"}
"""The operation of the composition of GELU of which an operator of torch is part; the power's gradient multiplies."""


def test_the_parts_of_gelu_are_the_operators_of_torch(torch):
    """Forward, one by one; backward, torch multiplies for the gradient of the power too."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = Counter()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen[TORCH_NAMES[func.overloadpacket.__name__]] += 1
            return func(*args, **(kwargs or {}))

    x = torch.randn(ROWS)
    with Watch():
        new_gelu(x)
    launches = Counter[str]()
    for kernel in gelu(ROWS, "fp32", written_out=True).forward(1):
        launches[kernel.operation.name] += kernel.launches
    assert launches == seen


def totals(kernels):
    """(launches, bytes) of all *kernels*."""
    return sum(kernel.launches for kernel in kernels), sum(kernel.nbytes for kernel in kernels)


def rms_norm_written_out(torch):
    """The operators of Hugging Face's LlamaRMSNorm and of Megatron-LM's RMSNorm, in their order."""

    def run(x, weight):
        wide = x.to(torch.float32)
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight * normed.to(x.dtype)

    return run


def rope_written_out(torch):
    """Rotary embedding of queries and keys in the order of Hugging Face's apply_rotary_pos_emb."""

    def turned(x):
        half = x.shape[-1] // 2
        return torch.cat((-x[..., half:], x[..., :half]), dim=-1)

    def run(queries, keys):
        cos, sin = (torch.ones(ROWS, 1, queries.shape[-1], dtype=queries.dtype) for _ in range(2))
        return tuple(x * cos + turned(x) * sin for x in (queries, keys))

    return run


def swiglu_written_out(torch, *, separate):
    """silu(gate) * up of two tensors, or of the halves of one (Megatron-LM, transformer.py, swiglu)."""

    def run(*given):
        gate, up = given if separate else torch.chunk(given[0], 2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    return run


@pytest.mark.parametrize("precision", WIDTHS)
@pytest.mark.parametrize("operator", ["rms_norm", "rope", "swiglu of two", "swiglu of halves"])
def test_what_is_not_fused_is_what_torch_does(torch, operator, precision):
    """Kernels, traffic and kept bytes of compositions; small tensors (a number a row, a weight) are left out."""
    kind, rows, width = getattr(torch, {"bf16": "bfloat16", "fp32": "float32"}[precision]), ROWS, 1024
    wide = torch.randn(rows, width, dtype=kind, requires_grad=True)
    heads = [torch.randn(rows, 8, width // 8, dtype=kind, requires_grad=True) for _ in range(2)]
    function, given, made = {
        "rms_norm": (
            rms_norm_written_out(torch),
            [wide, torch.ones(width, dtype=kind, requires_grad=True)],
            rms_norm(rows, width, precision, fused=False),
        ),
        "rope": (rope_written_out(torch), heads, rotary(2 * rows * width, precision, fused=False)),
        "swiglu of two": (
            swiglu_written_out(torch, separate=True),
            [wide, torch.randn_like(wide, requires_grad=True)],
            swiglu(rows * width, precision, fused=False),
        ),
        "swiglu of halves": (
            swiglu_written_out(torch, separate=False),
            [torch.randn(rows, 2 * width, dtype=kind, requires_grad=True)],
            swiglu(rows * width, precision, fused=False, separate=False),
        ),
    }[operator]
    saved, results = {}, []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.setdefault(t.data_ptr(), t), lambda t: t):
        forward = watched(torch, lambda: results.append(function(*given)), least=rows * width // 2)
    outputs = results[0] if isinstance(results[0], tuple) else (results[0],)
    gradients = [torch.ones_like(one) for one in outputs]
    backward = watched(torch, lambda: torch.autograd.grad(outputs, given, gradients), least=rows * width // 2)
    kept = sum(t.numel() * t.element_size() for t in saved.values() if t.numel() >= rows * width)
    assert kept == made.kept_bytes(1)
    for kernels, seen in ((made.forward(1), forward), (made.backward_input(1), backward)):
        assert sum(kernel.launches for kernel in kernels) == seen.kernels
        assert sum(kernel.nbytes for kernel in kernels) == pytest.approx(seen.moved, rel=0.01)
        assert sum(kernel.accesses for kernel in kernels) == pytest.approx(seen.accesses, rel=0.01)


@pytest.mark.parametrize("operator", ["cast", "residual"])
def test_a_residual_stream_in_fp32_is_what_autocast_does(torch, operator):
    """The stream is fp32, products are bf16: each casts its input, and the gradient of what is added is cast."""
    stream = torch.randn(ROWS, CLASSES, requires_grad=True)
    product = torch.randn(ROWS, CLASSES, dtype=torch.bfloat16, requires_grad=True)
    function, given, made = {
        "cast": (
            lambda x: tuple(x.to(torch.bfloat16) for _ in range(3)),
            [stream],
            cast(ROWS * CLASSES, "bf16", "fp32", 3),
        ),
        "residual": (
            lambda x, y: (x + y,),
            [stream, product],
            residual(ROWS * CLASSES, "bf16", "fp32", drop=False, fused=False),
        ),
    }[operator]
    results = []
    forward = watched(torch, lambda: results.append(function(*given)), least=stream.numel())
    gradients = [torch.ones_like(one) for one in results[0]]
    backward = watched(torch, lambda: torch.autograd.grad(results[0], given, gradients), least=stream.numel())
    (kernel,) = made.forward(1)
    assert (kernel.launches, kernel.nbytes, kernel.accesses) == (forward.kernels, forward.moved, forward.accesses)
    assert sum(kernel.accesses for kernel in made.backward_input(1)) == backward.accesses
    launches, nbytes = totals(made.backward_input(1))
    # the sum of the two gradients that meet at x is the residual's, and no part of this graph
    sums = (1, 3 * 4 * stream.numel()) if operator == "residual" else (0, 0)
    assert (launches - sums[0], nbytes - sums[1]) == (backward.kernels, backward.moved)


def test_autocast_keeps_a_copy_of_the_input_for_each_product():
    """Llama's three products of attention and two of the MLP; norms keep the stream in fp32."""
    shape = Shape(
        1,
        8,
        4,
        32,
        SelfAttention(2, 2),
        Mlp(16, activation="swiglu"),
        norm=Norm("rmsnorm"),
        dropout=False,
        precision="bf16",
    )
    narrow, wide = (
        transformer(replace(shape, software=Software(fused=False, fp32_residual=on))).layers[1] for on in (False, True)
    )
    stream = 4 * 8
    # a norm in bf16 keeps a copy in fp32 anyway; with a stream in fp32 what the weight multiplies is wider by 2 bytes
    assert wide.activation_bytes(1) - narrow.activation_bytes(1) == (2 + 1) * 2 * stream + 2 * 2 * stream
    assert wide.output_bytes(1) == 2 * narrow.output_bytes(1)


def in_place(torch):
    """A loss that holds one fp32 copy of the logits, on which it does all its steps."""

    class InPlace(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, labels):
            logits -= logits.max(-1, keepdim=True)[0]
            rows = torch.arange(len(labels))
            chosen = logits[rows, labels]
            total = logits.exp_().sum(-1, keepdim=True)
            logits /= total
            ctx.save_for_backward(logits, labels)
            return (total.log().squeeze(-1) - chosen).mean()

        @staticmethod
        def backward(ctx, gradient):
            logits, labels = ctx.saved_tensors
            logits[torch.arange(len(labels)), labels] -= 1.0
            return logits.mul_(gradient / len(labels)), None

    return InPlace.apply


def compiled(torch):
    """A loss that keeps its logits in 16 bits, and makes their gradient without anything else."""

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, labels):
            ctx.save_for_backward(logits)
            return logits[0, 0].float()

        @staticmethod
        def backward(ctx, gradient):
            return torch.empty_like(ctx.saved_tensors[0]), None

    return Compiled.apply


@pytest.mark.parametrize(
    ("how", "bytes_of_a_logit"),
    [("eager", 14), ("plain", 8), ("shifted", 12), ("vocab_parallel", 6), ("chunked", 2.25)],
)
def test_the_loss_holds_what_torch_does(torch, how, bytes_of_a_logit):
    """The model is its logits: a product with few inputs, so that nothing else is large."""
    x = torch.randn(ROWS, HIDDEN, dtype=torch.bfloat16)
    weight = torch.randn(CLASSES, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, CLASSES, (ROWS,))
    cross = torch.nn.functional.cross_entropy

    def in_chunks():
        made = [rows @ weight.t() for rows in x.chunk(CHUNKS)]
        loss = sum(compiled(torch)(*one) for one in zip(made, labels.chunk(CHUNKS), strict=True))
        del made  # torchtune's recipes drop the logits
        loss.backward()

    def step():
        if how == "chunked":
            in_chunks()
            return
        logits = x @ weight.t()
        if how == "shifted":  # Hugging Face's moves labels by one; its Trainer drops the logits then
            logits = logits.float()
            loss = cross(logits[:-1].contiguous(), labels[1:])
            del logits
        else:
            cast = logits if how == "plain" else logits.float()
            loss = (in_place(torch) if how == "vocab_parallel" else cross)(cast, labels)
            del cast
        if how == "vocab_parallel":
            del logits  # Megatron-LM's forward pass returns the loss only
        loss.backward()

    seen = watched(torch, step).peak / (ROWS * CLASSES)
    loss = cross_entropy(ROWS, CLASSES, "bf16", how)
    told = max(loss.kept_bytes(1) + loss.transient_bytes(phase, 1) for phase in "FI") / (ROWS * CLASSES)
    assert told == bytes_of_a_logit
    # the rows' maxima and sums, and the weight's gradient, are small beside the logits
    assert seen == pytest.approx(told, rel=0.03)


HELD = {  # how: (precision, kept, held forward, held backward, moved forward, moved backward), bytes of a logit
    "eager, 16 bits": ("eager", "bf16", 6, 4, 8, 14, 22),
    "eager, fp32": ("eager", "fp32", 8, 0, 8, 8, 16),
    "nothing cast, 16 bits": ("plain", "bf16", 4, 0, 4, 4, 8),
    "Hugging Face, 16 bits": ("shifted", "bf16", 4, 8, 8, 22, 34),
    "Megatron-LM, 16 bits": ("vocab_parallel", "fp16", 4, 2, 2, 38, 14),
    "Megatron-LM, fp32": ("vocab_parallel", "fp32", 4, 0, 0, 32, 8),
    "one kernel, 16 bits": ("fused", "bf16", 4, 2, 2, 6, 6),
    "torchtune, 16 bits": ("chunked", "bf16", 2, 0, 0.25, 2, 4),
    "torch.compile of model and loss": ("recomputed", "bf16", 2, 0, 2, 4, 4),
    "llm.c": ("in_place", "bf16", 2, 0, 0, 6, 0),
    "llm-foundry, 16 bits": ("with_metrics", "bf16", 2, 0, 2, 2, 32),
}


@pytest.mark.parametrize("row", HELD.values(), ids=HELD)
def test_bytes_of_a_logit_by_hand(row):
    how, precision, kept, forward, backward, reads, returns = row
    loss, logits = cross_entropy(3, 50, precision, how), 2 * 3 * 50
    assert (loss.kept_bytes(2), loss.transient_bytes("F", 2), loss.transient_bytes("I", 2)) == (
        kept * logits, forward * logits, backward * logits,
    )  # fmt: skip
    moved = [sum(kernel.nbytes for kernel in kernels) for kernels in (loss.forward(2), loss.backward_input(2))]
    assert moved == [reads * logits, returns * logits]


SHAPE = Shape(2, 64, 32, 4096, SelfAttention(4, 4), Mlp(256), precision="bf16", dropout=False)


@pytest.mark.parametrize("how", ["eager", "vocab_parallel", "fused"])
@pytest.mark.parametrize("order", ["0F0,0B0", "0F0,0I0,0W0"])
def test_a_rank_holds_the_most_while_it_computes_the_loss(how, order):
    """A small model with a large vocabulary peaks in its head: states, activations of all layers, and the loss."""
    what, samples = transformer(replace(SHAPE, software=Software(cross_entropy=how))), 3
    schedule = compute(what, Order.parse(order), micro_batch_size=samples, optimizer="adam")
    logits = samples * 32 * 4096
    loss = cross_entropy(32, 4096, "bf16", how)
    activations = sum(layer.activation_bytes(samples) for layer in what.layers)
    most = max(loss.transient_bytes(phase, samples) for phase in "FI")
    assert bound(schedule).peak.nbytes == pytest.approx(16 * what.parameters + activations + most)
    assert most >= 2 * logits


@pytest.mark.parametrize(
    ("stack", "how", "kept"),
    [
        ("ddp", "eager", 2 + 3 * 4),
        ("huggingface", "shifted", 2 + 3 * 4),
        ("fsdp", "eager", 4 * 2),
        ("llm_foundry", "with_metrics", 4 * 2),
        ("megatron", "vocab_parallel", 2),
        ("ddp_compile", "recomputed", 2),
        ("ideal", "in_place", 2),
    ],
)
def test_the_stack_and_the_model_say_which(stack, how, kept):
    """GPT-2 has the tanh form; written out it keeps four tensors of 4 h, three of fp32 under autocast; else one."""
    kernels = software(stack)
    found = model("gpt2", "bf16", kernels.fused).with_software(kernels)
    other = model("bert_base", "bf16", kernels.fused).with_software(kernels)
    assert found.shape.loss == other.shape.loss == how
    plain = transformer(replace(found.shape, mlp=replace(found.shape.mlp, activation="gelu")))
    extra = found.layers[1].activation_bytes(1) - plain.layers[1].activation_bytes(1)
    assert extra == (kept - 2) * 1024 * 4 * 768
