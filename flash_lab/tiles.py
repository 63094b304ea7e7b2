"""The order in which tiles are visited: iterators, to be put beside any step.

A visit is what one thread block does from start to end: a list of (queries, key blocks), the keys that a block of
queries meets while its state is on chip. Within a visit the last block of keys and values stays on chip too, so that
it is not read again; between visits nothing stays.
"""


def blocks(n, block):
    """The ranges of at most `block` indices that cover range(n) in order."""
    return [range(start, min(start + block, n)) for start in range(0, n, block)]


def queries_outside(query_blocks, key_blocks):
    """One visit per block of queries, over all key blocks: FlashAttention-2. Each state is stored once.

    query_blocks, key_blocks: lists of ranges that cover the queries and the keys. Returns an iterator of visits.
    """
    return ([(queries, key_blocks)] for queries in query_blocks)


def queries_outside_reversed(query_blocks, key_blocks):
    """The same with the last key block first, as FlashAttention-2's kernel runs it.

    Arguments and result as in `queries_outside`.
    """
    return queries_outside(query_blocks, key_blocks[::-1])


def keys_outside(query_blocks, key_blocks):
    """One visit per block of keys, over all query blocks: FlashAttention-1.

    K and V are read once, but each state is loaded and stored again for every key block.
    Arguments and result as in `queries_outside`.
    """
    return ([(queries, [keys]) for queries in query_blocks] for keys in key_blocks)


def without_hidden(visits, shift):
    """The visits without the tiles in which j <= i + shift holds for no key j and query i; None keeps all."""
    for visit in visits:
        seen = [(q, [k for k in keys if shift is None or k.start <= q.stop - 1 + shift]) for q, keys in visit]
        yield [(queries, keys) for queries, keys in seen if keys]
