"""CPU schedules for TVM: rules in the manner of dlight, applied after FuseTIR.

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
        make("RaggedContraction")(_ragged_contraction),
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


def _output_names(schedule: Schedule) -> set[str]:
    """Names of the blocks that write an output (a split writes several)."""
    return {schedule.get(b).name_hint for b in schedule.get_output_blocks("root")}


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
    if any(schedule.get(b).name_hint in _output_names(schedule) for b in (block, *after)[:-1]):
        return None
    shape = _output_extents(schedule, after[-1] if after else block)
    lanes, registers = vector_unit(target)
    if len(shape) < 2:
        return None
    tile = tile_shape(shape[-2], shape[-1], lanes, registers)
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
    rows pass. Decomposing comes last: after it the schedule's checks refuse the other steps.
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


def _ragged_contraction(function: PrimFunc, target: Target, _: bool) -> Schedule | None:
    """A lone reduction whose columns fill no whole number of vectors (GPT-2's 50257 logits).

    The columns are cut into a part of whole vectors and a short serial rest. The tile accumulates
    in the output itself: LLVM keeps it in registers, since the buffers are known not to overlap.
    """
    schedule = Schedule(function)
    blocks = _blocks(schedule)
    if len(blocks) != 1 or not _is_reduction(schedule, blocks[0]):
        return None
    axes = schedule.get(blocks[0]).iter_vars
    spatial = _output_extents(schedule, blocks[0])
    lanes, registers = vector_unit(target)
    whole = spatial[-1] // lanes * lanes
    in_order = all(v.iter_type == IterVar.DataPar for v in axes[: len(spatial)])
    tile = tile_shape(spatial[-2], lanes, lanes, registers) if len(spatial) > 1 else None
    if tile is None or not in_order or whole in (0, spatial[-1]):
        return None
    loops = schedule.get_loops(blocks[0])
    column = loops[len(spatial) - 1]
    schedule.reorder(column, *loops[: len(spatial) - 1])
    main, _rest = schedule.loop_partition(column, [whole, None])
    block = schedule.get_child_blocks(main)[0]
    column, *outer, row = schedule.get_loops(block)[: len(spatial)]
    reductions = schedule.get_loops(block)[len(spatial) :]
    column_tile, lane = schedule.split(column, [None, lanes])
    row_tile, row_in = schedule.split(row, [None, tile[0]])
    schedule.reorder(column_tile, *outer, row_tile, *reductions, row_in, lane)
    schedule.parallel(schedule.fuse(column_tile, *outer, row_tile))
    schedule.unroll(row_in)
    schedule.vectorize(lane)
    schedule.decompose_reduction(block, reductions[0])
    return schedule


def _element_wise(function: PrimFunc, target: Target, _: bool) -> Schedule | None:
    """A chain without reductions: one loop nest an output, parallel and vectorised."""
    schedule = Schedule(function)
    blocks = _blocks(schedule)
    if not blocks or any(_is_reduction(schedule, block) for block in blocks):
        return None
    outputs = _output_names(schedule)
    lanes, _registers = vector_unit(target)
    for block in blocks:
        if schedule.get(block).name_hint in outputs:
            _vectorise(schedule, block, lanes)
        else:
            schedule.compute_inline(block)
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
