"""An sbatch script for Slurm that starts the run with torchrun: Megatron-LM for its models, else a train.py."""

from __future__ import annotations

from clustersim.scenarios.exchange.export import Export, Launch, command, launch, script
from clustersim.scenarios.exchange.exporting.megatron import AXES, arguments, environment, notes
from clustersim.scenarios.scenario import Scenario
from clustersim.simulator.reading.errors import ScenarioError

TASK = (
    "torchrun --nnodes=$SLURM_NNODES --nproc_per_node={each} --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d "
    "--rdzv_endpoint=$MASTER_ADDR:29500 {program}"
)
"""A task for each node; torchrun starts a process for each GPU (docs.pytorch.org, elastic run)."""


def slurm(scenario: Scenario) -> Export:
    """Return the script."""
    run = launch(scenario, "Slurm", AXES)
    program, flags, variables, remarks = _program(run)
    headers = [
        f"#SBATCH --job-name={scenario.name.replace(' ', '_')}",
        f"#SBATCH --nodes={run.nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --gpus-per-node={run.gpus_per_node}",
        "#SBATCH --exclusive",
    ]
    address = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    started = command(f"srun {TASK.format(each=run.gpus_per_node, program=program)}", flags)
    first, *rest = script(scenario.name, "Slurm", [address, *variables, "", started]).splitlines()
    text = "\n".join([first, *headers, *rest]) + "\n"
    return Export({f"{scenario.name}.sbatch": text}, tuple(remarks))


def _program(run: Launch) -> tuple[str, list[str], list[str], list[str]]:
    """Return the program, its flags, variables of the environment, and notes."""
    try:
        flags = arguments(run)
    except ScenarioError as error:
        reason = str(error).splitlines()[0]
        batch = [
            f"--per_device_train_batch_size {run.micro_batch}",
            f"--gradient_accumulation_steps {run.accumulation}",
        ]
        return "train.py", batch, [], [f"train.py is yours; it is not Megatron-LM: {reason}"]
    return "pretrain_gpt.py", flags, environment(run), ["pretrain_gpt.py is Megatron-LM's, core_v0.15.3", *notes(run)]
