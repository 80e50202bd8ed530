"""Attention over a sequence that is cut over the ranks of a context-parallel group.

Every rank has the queries, keys and values of its own positions. *ring* passes blocks of keys and values around the
group, beside the attention to the block before (Liu et al. 2023, "Ring Attention", arXiv:2310.01889). *all_gather*
gathers all keys and values first (Llama 3, arXiv:2407.21783, section 3.3.2). *ulysses* exchanges positions for heads:
then a rank has all positions of some heads (Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv:2309.14509).

A causal mask gives late positions more scores than early ones. In a *zigzag* layout the sequence is cut into twice as
many chunks as ranks, and rank r of c has the chunks r and 2c - 1 - r: all ranks compute as many scores (Megatron-LM,
``get_batch_on_this_cp_rank``; torch, ``_HeadTailLoadBalancer``). In a *contiguous* layout the last rank computes
2 - 1/c times the mean. If documents are packed into the sequence, a zigzag ring cuts each of them into such chunks
(Transformer Engine, ``thd`` format); the other layouts cut the sequence as it is, so that some ranks may compute more.
"""
