"""CPU schedules for TVM: three rules in the manner of dlight, applied after FuseTIR.

TVM's own CPU pipeline leaves matrix products and convolutions as scalar loop nests (DESIGN: TVM
row of the configurations). One rule covers them: an output tile is accumulated in vector registers
over the whole reduction, and the fused element-wise epilogue is applied while the tile is there.
There is no search and no measuring; the tile follows from extents and register count alone.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.s_tir import Schedule, dlight
from tvm.target import Target
from tvm.target.codegen import target_has_features
from tvm.tirx import IterVar, PrimFunc

#: Vector registers of a tile: one row of at most this many vectors, and at most this many rows.
MAX_VECTORS, MAX_ROWS = 4, 16
#: Independent accumulators that keep two multiply-add units of latency 4 busy.
BUSY_ACCUMULATORS = 8


def rules() -> list[Any]:
    """The rules in the order in which they are tried; a function none fits stays a serial nest."""
    make = dlight.ScheduleRule.from_callable
    return [
        make("Contraction")(_contraction),
        make("ElementWise")(_element_wise),
        dlight.cpu.Reduction(),
    ]


def vector_unit(target: Target) -> tuple[int, int]:
    """(float32 lanes of a vector register, number of vector registers) of an LLVM target.

    TVM's own `llvm_get_vector_width` answers for the CPU it runs on, not for the target.
    """
    if target_has_features("avx512f", target):
        return 16, 32
    if target_has_features("avx2", target):
        return 8, 16
    return 4, 16


def tile_shape(rows: int, columns: int, lanes: int, registers: int) -> tuple[int, int] | None:
    """(rows, vectors) of the best register tile that divides a rows x columns output, or None.

    A tile of r rows and v vectors needs r*v accumulators, v vectors of one operand and one
    broadcast value of the other. Among those that fit: fewest loads per multiply-add, with a
    penalty for too few independent accumulators.
    """
    best: tuple[float, int, int] | None = None
    for vectors in range(1, MAX_VECTORS + 1):
        for tile_rows in range(1, MAX_ROWS + 1):
            accumulators = tile_rows * vectors
            fits = accumulators + vectors + 1 <= registers
            if not fits or columns % (vectors * lanes) or rows % tile_rows:
                continue
            stalls = max(1.0, BUSY_ACCUMULATORS / accumulators)
            cost = (tile_rows + vectors + 1) / accumulators + stalls
            if best is None or cost < best[0]:
                best = (cost, tile_rows, vectors)
    return None if best is None else best[1:]


def _is_reduction(schedule: Schedule, block: Any) -> bool:
    return any(v.iter_type == IterVar.CommReduce for v in schedule.get(block).iter_vars)


def _blocks(schedule: Schedule) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _extent(schedule: Schedule, loop: Any) -> int:
    return int(schedule.get(loop).extent)


def _contraction(function: PrimFunc, target: Target, _: bool) -> Schedule | None:
    """One reduction (matrix product, convolution, pooling) with element-wise neighbours."""
    schedule = Schedule(function)
    blocks = _blocks(schedule)
    reductions = [block for block in blocks if _is_reduction(schedule, block)]
    if len(reductions) != 1 or len(schedule.get(reductions[0]).writes) != 1:
        return None
    block = reductions[0]
    position = blocks.index(block)
    before, after = blocks[:position], blocks[position + 1 :]
    shape = _output_extents(schedule, after[-1] if after else block)
    lanes, registers = vector_unit(target)
    tile = tile_shape(*shape[-2:], lanes, registers) if len(shape) > 1 else None
    if tile is None:
        return None
    padding = [producer for producer in before if _pads(schedule, producer)]
    for producer in padding:
        _vectorise(schedule, producer, lanes)
    for inlined in (*(b for b in before if b not in padding), *after[:-1]):
        schedule.compute_inline(inlined)
    epilogue = after[-1] if after else schedule.cache_write(block, 0, "local")
    _tile(schedule, block, epilogue, *tile, lanes)
    return schedule


def _pads(schedule: Schedule, block: Any) -> bool:
    """True when the block enlarges what it reads: inlined, it would put a condition into the
    innermost loop. TOPI makes such a block for every convolution, padded or not."""
    statement = schedule.get(block)
    read = max(math.prod(map(int, r.source.shape)) for r in statement.reads)
    return math.prod(map(int, statement.writes[0].source.shape)) > read


def _output_extents(schedule: Schedule, block: Any) -> list[int]:
    """Extents of a block's spatial axes, outermost first."""
    axes = schedule.get(block).iter_vars
    return [int(v.dom.extent) for v in axes if v.iter_type == IterVar.DataPar]


def _tile(
    schedule: Schedule, block: Any, epilogue: Any, rows: int, vectors: int, lanes: int
) -> None:
    """Accumulate a rows x (vectors * lanes) tile of `block` in registers, then its epilogue.

    Column tiles come before row tiles, so that one column of weights stays in the cache while the
    rows pass. The order of steps matters: after `decompose_reduction` the checks refuse every other.
    """
    *outer, row, column = schedule.get_loops(epilogue)
    row_tile, row_in = schedule.split(row, [None, rows])
    column_tile, vector, lane = schedule.split(column, [None, vectors, lanes])
    order = [*outer[:1], column_tile, *outer[1:], row_tile]
    schedule.reorder(*order, row_in, vector, lane)
    tiles = schedule.fuse(*order)
    schedule.compute_at(block, tiles, preserve_unit_loops=True)
    schedule.set_scope(block, 0, "local")
    first_reduction = _accumulate(schedule, block, vectors, lanes)
    schedule.parallel(tiles)
    schedule.unroll(row_in)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, first_reduction)


def _accumulate(schedule: Schedule, block: Any, vectors: int, lanes: int) -> Any:
    """Inside a tile: reduction loops outside, the tile unrolled and vectorised inside.

    Returns the outermost reduction loop.
    """
    axes = schedule.get(block).iter_vars
    loops = schedule.get_loops(block)[-len(axes) :]
    reduced = [v.iter_type == IterVar.CommReduce for v in axes]
    reductions = [loop for loop, r in zip(loops, reduced, strict=True) if r]
    *spatial, column = [loop for loop, r in zip(loops, reduced, strict=True) if not r]
    vector, lane = schedule.split(column, [vectors, lanes])
    schedule.reorder(*reductions, *spatial, vector, lane)
    for loop in (*spatial, vector):
        schedule.unroll(loop)
    schedule.vectorize(lane)
    return reductions[0]


def _element_wise(function: PrimFunc, target: Target, _: bool) -> Schedule | None:
    """A chain without reductions: one loop nest, parallel and vectorised."""
    schedule = Schedule(function)
    blocks = _blocks(schedule)
    if not blocks or any(_is_reduction(schedule, block) for block in blocks):
        return None
    for block in blocks[:-1]:
        schedule.compute_inline(block)
    _vectorise(schedule, blocks[-1], vector_unit(target)[0])
    return schedule


def _vectorise(schedule: Schedule, block: Any, lanes: int) -> None:
    """Vectorise the innermost axis where it divides evenly, else the flattened index."""
    loops = schedule.get_loops(block)
    if not loops:
        return
    if len(loops) > 1 and _extent(schedule, loops[-1]) % lanes == 0:
        outer = schedule.fuse(*loops[:-1])
        _, lane = schedule.split(loops[-1], [None, lanes])
    else:
        outer, lane = schedule.split(schedule.fuse(*loops), [None, lanes])
    schedule.parallel(outer)
    schedule.vectorize(lane)
