"""Fine-tuning of a frozen model by low-rank adapters (LoRA), with its weights in 4 bits on request (QLoRA)."""
