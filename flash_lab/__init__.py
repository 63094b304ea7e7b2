"""The NumPy reference: online softmax as an algebra of states, and tiled attention built from it.

Conventions, everywhere in this package
- Q is (..., n_q, d), K (..., n_k, d), V (..., n_k, d_v), leading dimensions batch and heads; scores are Q @ K.T before
  the scale, which is 1/sqrt(d) by default. K and V may have fewer heads, shared by groups of query heads.
- float32 or float64, one dtype for all inputs; sums and result have that dtype unless an accumulator is chosen.
- Every attention returns (O, lse): O (..., n_q, d_v), lse (..., n_q) = ln(sum of exp(scale * score)), natural log.
- A masked score is -inf. A row that sees no key has output 0 and lse -inf; nothing turns (-inf) - (-inf) into NaN.
- causal=True is aligned bottom-right, as in FlashAttention since 2.1: query i sees key j when j <= i + n_k - n_q;
  "top-left", as in PyTorch's is_causal, has to be asked for by name. Boolean masks are True where a key is visible.
- Inputs are read only as x[a:b] and outputs written only as x[a:b] = v, so that counted arrays can stand in.

The package imports NumPy and nothing else, and never prints. Names are the papers':
m running max, l running sum, o running output.
"""

from .cost import traffic_full_matrix, traffic_keys_outside, traffic_tiled, work_formula
from .counting import Counted, Tally, Work, WorkArray
from .dense import attention
from .errors import bound_in_u, exact_and_unit, worst_in_u
from .forward import flash_forward
from .rows import attention_1pass, attention_2pass, attention_3pass, row_tiles, softmax_2pass, softmax_3pass
from .state import (
    EMPTY,
    State,
    empty_state,
    from_output_lse,
    lse,
    merge_states,
    merge_tree,
    output,
    partial_state,
    to_output_lse,
)
from .tiles import keys_outside, queries_outside, queries_outside_reversed
from .variants import FA1, FA2, FA2_EXP2, Variant, accumulate, rounded

__all__ = [
    "EMPTY",
    "FA1",
    "FA2",
    "FA2_EXP2",
    "Counted",
    "State",
    "Tally",
    "Variant",
    "Work",
    "WorkArray",
    "accumulate",
    "attention",
    "attention_1pass",
    "attention_2pass",
    "attention_3pass",
    "bound_in_u",
    "empty_state",
    "exact_and_unit",
    "flash_forward",
    "from_output_lse",
    "keys_outside",
    "lse",
    "merge_states",
    "merge_tree",
    "output",
    "partial_state",
    "queries_outside",
    "queries_outside_reversed",
    "rounded",
    "row_tiles",
    "softmax_2pass",
    "softmax_3pass",
    "to_output_lse",
    "traffic_full_matrix",
    "traffic_keys_outside",
    "traffic_tiled",
    "work_formula",
    "worst_in_u",
]
