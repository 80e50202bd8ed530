"""The keys of latent attention, named as in Hugging Face's configurations of DeepSeek."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.document import Count, Fault, Section

if TYPE_CHECKING:
    from workloads.latent_attention.operator import Latent


class LatentKeys(Section):
    """Keys of multi-head latent attention. Without kv_lora_rank attention is not latent."""

    kv_lora_rank: Count | None = None
    """Features of the vector from which keys and values are made (multi-head latent attention); by default none."""
    q_lora_rank: Count | None = None
    """Features of the vector from which queries are made; by default they are made from the hidden state."""
    qk_nope_head_dim: Count = 128
    """Features of a query that are not rotated, for each head; 128 by default, as in Megatron-LM (qk_head_dim)."""
    qk_rope_head_dim: Count = 64
    """Features of a query that are rotated, for each head; 64 by default (qk_pos_emb_head_dim)."""
    v_head_dim: Count = 128
    """Features of a value, for each head; 128 by default."""

    @property
    def latent(self) -> Latent | None:
        """Its sizes."""
        from workloads.latent_attention.operator import Latent

        if self.kv_lora_rank is None:
            return None
        sizes = self.qk_nope_head_dim, self.qk_rope_head_dim, self.v_head_dim
        return Latent(self.q_lora_rank or 0, self.kv_lora_rank, *sizes)

    def check_latent(self, attention: str) -> None:
        """Raise `Fault` for keys that stand without latent attention, and for kernels that it does not have."""
        own = [key for key in LatentKeys.model_fields if key in self.model_fields_set]
        if self.kv_lora_rank is None and own:
            raise Fault(own[0], "belongs to latent attention; give kv_lora_rank too")
        if self.kv_lora_rank is not None and attention != "flash":
            raise Fault("attention", f"must be flash with kv_lora_rank, not {attention}")
