"""The kernel that sorts the slots of tokens by their experts, as PTX, which the driver compiles like copies.py.

CTA e counts the ids below e and those equal to e, and then gives the latter their places, so that one launch needs no
atomics and no order among its CTAs. Each warp has a segment of consecutive ids. After it has counted, it adds the
counts of the warps before it, and ranks its own ids by ballots. It keeps the ballots of the first :data:`KEPT` ids of
its segment in shared memory, and reads further ids again. Places therefore ascend with tokens, and their order is the
same in every run.

Ids beyond the experts, among them negative ones, count as one more expert, the last, whose CTA sorts the slots to skip.
"""

from __future__ import annotations

import struct
from string import Template

ENTRY = "gemmill_routing"
"""Symbol of the kernel."""
JOB = struct.Struct("<QQQQIIIIII")
"""The parameters: addresses of the ids, the offsets, the rows and the places; number of ids; slots of a token; number
of experts; bytes between ids; ids of a warp; padding."""
WARPS = 32
"""Warps of a CTA: as many as lanes, so that a warp reads the counts of all warps at once."""
THREADS = 32 * WARPS
"""Threads of a CTA."""
_LOADS = 4
"""Ids of a lane that are on their way at once."""
STEP = 32 * _LOADS
"""Ids that a warp reads at once; segments are multiples."""
KEPT = 64 * STEP
"""Ids of a warp whose ballots are kept, a bit each."""

_KERNEL = Template("""\
.version 7.8
.target sm_90
.address_size 64

.visible .entry $entry(.param .align 8 .b8 job[$bytes])
.maxntid $threads
{
  .shared .align 16 .b8 counts[$shared];
  .reg .pred %done, %first, %before, %valid, %none, %keeps;
  .reg .pred %inside<$loads>, %less<$loads>, %equal<$loads>;
  .reg .b32 %count, %slots, %experts, %step, %segment, %expert, %thread, %lane, %warp, %lower;
  .reg .b32 %begin, %end, %at, %shared, %ballots, %kept, %below, %same, %place, %rank, %token, %x;
  .reg .b32 %id<$loads>, %index<$loads>, %mask<$loads>;
  .reg .b64 %ids, %offsets, %rows, %places, %start, %address, %stride, %to;
  ld.param.b64 %ids, [job];
  ld.param.b64 %offsets, [job + 8];
  ld.param.b64 %rows, [job + 16];
  ld.param.b64 %places, [job + 24];
  ld.param.b32 %count, [job + 32];
  ld.param.b32 %slots, [job + 36];
  ld.param.b32 %experts, [job + 40];
  ld.param.b32 %step, [job + 44];
  ld.param.b32 %segment, [job + 48];

  // The segment of this warp, and the first id of this lane.
  mov.b32 %expert, %ctaid.x;
  mov.b32 %thread, %tid.x;
  and.b32 %lane, %thread, 31;
  shr.u32 %warp, %thread, 5;
  mov.b32 %lower, %lanemask_lt;
  mul.lo.u32 %begin, %warp, %segment;
  add.u32 %end, %begin, %segment;
  min.u32 %end, %end, %count;
  add.u32 %x, %begin, %lane;
  mul.wide.u32 %start, %x, %step;
  add.u64 %start, %start, %ids;
  mul.wide.u32 %stride, %step, 32;

  // Where the ballots of this warp are, and the first id without one.
  mov.b32 %shared, counts;
  mad.lo.u32 %ballots, %warp, $kept_bytes, %shared;
  add.u32 %ballots, %ballots, $counts;
  add.u32 %kept, %begin, $kept;
  setp.eq.u32 %first, %lane, 0;

  // The next kernel may be set up meanwhile; the one before may write the ids or read the results of the last launch.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;

  // Count the ids of the segment that are below this expert, and those that are equal.
  mov.b32 %below, 0;
  mov.b32 %same, 0;
  mov.b32 %x, %begin;
  mov.b32 %at, %ballots;
  mov.b64 %address, %start;
COUNT:
  setp.ge.u32 %done, %x, %end;
  @%done bra COUNTED;
$read
$count
  setp.lt.and.u32 %keeps, %x, %kept, %first;
  @%keeps st.shared.v4.b32 [%at], {$masks};
  add.u32 %at, %at, $bytes_of_step;
  add.u32 %x, %x, $ahead;
  bra COUNT;
COUNTED:

  // Of all warps: the ids that come before those of this one.
  redux.sync.add.u32 %below, %below, 0xffffffff;
  mad.lo.u32 %at, %warp, 8, %shared;
  @%first st.shared.v2.b32 [%at], {%below, %same};
  bar.sync 0;
  mad.lo.u32 %at, %lane, 8, %shared;
  ld.shared.v2.b32 {%below, %same}, [%at];
  setp.lt.u32 %before, %lane, %warp;
  selp.b32 %place, %same, 0, %before;
  redux.sync.add.u32 %below, %below, 0xffffffff;
  redux.sync.add.u32 %same, %same, 0xffffffff;
  redux.sync.add.u32 %place, %place, 0xffffffff;
  add.u32 %place, %place, %below;

  // The end of the group.
  setp.lt.u32 %valid, %expert, %experts;
  setp.eq.and.u32 %first, %thread, 0, %valid;
  add.u32 %x, %below, %same;
  mul.wide.u32 %to, %expert, 4;
  add.u64 %to, %to, %offsets;
  @%first st.global.b32 [%to], %x;

  // Give the ids of this expert their places, in order.
  mov.b32 %x, %begin;
  mov.b32 %at, %ballots;
  mul.wide.u32 %address, %step, $kept;
  add.u64 %address, %address, %start;
PLACE:
  setp.ge.u32 %done, %x, %end;
  @%done bra PLACED;
  setp.lt.u32 %keeps, %x, %kept;
  @%keeps bra KEPT;
$read
$ballot
  bra BALLOTS;
KEPT:
  ld.shared.v4.b32 {$masks}, [%at];
  add.u32 %at, %at, $bytes_of_step;
BALLOTS:
$place
  add.u32 %x, %x, $ahead;
  bra PLACE;
PLACED:
  ret;
}
""")

_READ = Template("""\
  add.u32 %index$i, %x, %lane;
  add.u32 %index$i, %index$i, $offset;
  setp.lt.u32 %inside$i, %index$i, %end;
  @%inside$i ld.global.b32 %id$i, [%address];
  add.u64 %address, %address, %stride;""")

_BALLOT = Template("""\
  min.u32 %id$i, %id$i, %experts;
  setp.eq.and.u32 %equal$i, %id$i, %expert, %inside$i;
  vote.sync.ballot.b32 %mask$i, %equal$i, 0xffffffff;""")

_COUNT = Template("""\
  setp.lt.and.u32 %less$i, %id$i, %expert, %inside$i;
  @%less$i add.u32 %below, %below, 1;
  popc.b32 %rank, %mask$i;
  add.u32 %same, %same, %rank;""")

_PLACE = Template("""\
  setp.eq.u32 %none, %mask$i, 0;
  @%none bra PLACED$i;
  add.u32 %index$i, %x, %lane;
  add.u32 %index$i, %index$i, $offset;
  shr.u32 %rank, %mask$i, %lane;
  and.b32 %rank, %rank, 1;
  setp.eq.u32 %equal$i, %rank, 1;
  and.b32 %rank, %mask$i, %lower;
  popc.b32 %rank, %rank;
  add.u32 %rank, %rank, %place;
  div.u32 %token, %index$i, %slots;
  mul.wide.u32 %to, %rank, 4;
  add.u64 %to, %to, %rows;
  @%equal$i st.global.b32 [%to], %token;
  selp.b32 %rank, %rank, -1, %valid;
  mul.wide.u32 %to, %index$i, 4;
  add.u64 %to, %to, %places;
  @%equal$i st.global.b32 [%to], %rank;
  popc.b32 %rank, %mask$i;
  add.u32 %place, %place, %rank;
PLACED$i:""")


def emit_routing() -> str:
    """The PTX of the kernel, for sm_90 and later, where the kernels of groups run. Its parameters are :data:`JOB`, and
    it has a CTA for each expert and one more; CTAs have :data:`THREADS` threads."""

    def per_load(template: Template) -> str:
        return "\n".join(template.substitute(i=i, offset=32 * i) for i in range(_LOADS))

    return _KERNEL.substitute(
        entry=ENTRY,
        bytes=JOB.size,
        threads=THREADS,
        counts=8 * WARPS,
        shared=8 * WARPS + WARPS * KEPT // 8,
        kept=KEPT,
        kept_bytes=KEPT // 8,
        bytes_of_step=STEP // 8,
        masks=", ".join(f"%mask{i}" for i in range(_LOADS)),
        loads=_LOADS,
        read=per_load(_READ),
        count=per_load(_BALLOT) + "\n" + per_load(_COUNT),
        ballot=per_load(_BALLOT),
        place=per_load(_PLACE),
        ahead=STEP,
    )
