"""The kernel that sorts the slots of tokens by their experts, as PTX, which the driver compiles like copies.py.

Each cluster sorts the ids of :data:`RANGE` experts, in one launch and without atomics. Its warps have segments of
consecutive ids. A warp reads 32 ids at once; from six ballots each lane derives which of them are those of one expert,
and counts these in a register. Then the counts of the warps before it are added, within a CTA and, through distributed
shared memory, over the CTAs of the cluster; and each warp reads its ids again and gives them their places. Places
therefore ascend with tokens, and their order is the same in every run.

Ids beyond the experts, among them negative ones, count as one more expert, the last: the slots to skip.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from string import Template

from gemmill.emitters.ptx import head
from gemmill.library.legality.quantities import align_up

ENTRY = "gemmill_routing"
"""Symbol of the kernel."""
JOB = struct.Struct("<QQQQIIIIII")
"""The parameters: addresses of the ids, the offsets, the rows and the places; number of ids; number of experts; ids of
a warp; what divides by the slots of a token (:func:`division`); padding."""
RANGE = 32
"""Experts of a cluster: one a lane, and one a warp."""
WARPS = 32
"""Warps of a CTA: as many as lanes, so that a warp reads the counts of all warps at once."""
THREADS = 32 * WARPS
"""Threads of a CTA."""
CLUSTER = 8
"""Most CTAs of a cluster: what every GPU with clusters has."""
_LOADS = 4
"""Ids of a lane that are on their way at once."""
STEP = 32 * _LOADS
"""Ids that a warp reads at once."""
_BITS = range(RANGE.bit_length() - 1)
_ROW = 4 * (RANGE + 1)
"""Bytes of the counts of a warp or a CTA: of its experts, and of all before them. An odd number of words, so that
columns have no bank conflicts."""

_KERNEL = Template("""\
  .shared .align 16 .b8 counts[$shared];
  .reg .pred %done, %leads, %last, %valid, %has, %zero, %less, %inside<$loads>, %mine<$loads>;
  .reg .b32 %count, %experts, %segment, %factor, %shift, %first, %rank, %thread, %lane, %warp, %lower, %bits, %x;
  .reg .b32 %at, %from, %end, %shared, %table, %own, %column, %remote, %below, %same, %all, %sum, %place, %token;
  .reg .b32 %id<$loads>, %high<$loads>, %local<$loads>, %index<$loads>, %mask<$loads>, %flip<$planes>;
  .reg .b64 %ids, %offsets, %rows, %places, %start, %address, %to;
  ld.param.b64 %ids, [job];
  ld.param.b64 %offsets, [job + 8];
  ld.param.b64 %rows, [job + 16];
  ld.param.b64 %places, [job + 24];
  ld.param.b32 %count, [job + 32];
  ld.param.b32 %experts, [job + 36];
  ld.param.b32 %segment, [job + 40];
  ld.param.b32 %factor, [job + 44];
  ld.param.b32 %shift, [job + 48];

  // The first expert of this cluster, the segment of this warp, and the first id of this lane.
  mov.b32 %first, %clusterid.x;
  mul.lo.u32 %first, %first, $range;
  mov.b32 %rank, %cluster_ctarank;
  mov.b32 %thread, %tid.x;
  and.b32 %lane, %thread, 31;
  shr.u32 %warp, %thread, 5;
  mov.b32 %lower, %lanemask_lt;
  mad.lo.u32 %from, %rank, $warps, %warp;
  mul.lo.u32 %from, %from, %segment;
  add.u32 %end, %from, %segment;
  min.u32 %end, %end, %count;
  add.u32 %x, %from, %lane;
  mul.wide.u32 %start, %x, $step;
  add.u64 %start, %start, %ids;

  // The counts of this warp, that of the expert of this lane, and the table of the counts of all CTAs.
  mov.b32 %shared, counts;
  mad.lo.u32 %column, %warp, $row, %shared;
  mad.lo.u32 %own, %lane, 4, %column;
  add.u32 %table, %shared, $table;
  setp.eq.u32 %leads, %lane, 0;
$flips

  // The next kernel may be set up meanwhile; the one before may write the ids or read the results of the last launch.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;
$arrive

  // Count the ids of the segment: those of the expert of this lane, and those of experts before this cluster's.
  mov.b32 %below, 0;
  mov.b32 %same, 0;
  mov.b32 %at, %from;
  mov.b64 %address, %start;
COUNT:
  setp.ge.u32 %done, %at, %end;
  @%done bra COUNTED;
$read
$count
  bra COUNT;
COUNTED:
  redux.sync.add.u32 %below, %below, 0xffffffff;
  st.shared.b32 [%own], %same;
  @%leads st.shared.b32 [%column + $last], %below;
  bar.sync 0;

  // Warp e adds up the counts of expert e: each lane gets those of the warps before one.
  mad.lo.u32 %column, %lane, $row, %shared;
  ld.shared.b32 %below, [%column + $last];
  mad.lo.u32 %column, %warp, 4, %column;
  ld.shared.b32 %same, [%column];
  redux.sync.add.u32 %below, %below, 0xffffffff;
  mov.b32 %sum, %same;
$scan
  sub.u32 %x, %sum, %same;
  st.shared.b32 [%column], %x;

  // Tell all CTAs the counts of this one. They run once the first wait ends.
  redux.sync.add.u32 %all, %same, 0xffffffff;
  mad.lo.u32 %x, %rank, $row, %table;
  setp.lt.u32 %leads, %lane, $ctas;
  @%leads mapa.shared::cluster.u32 %remote, %x, %lane;
  setp.eq.and.u32 %last, %warp, 0, %leads;
$wait
  @%last st.shared::cluster.b32 [%remote + $last], %below;
  mad.lo.u32 %remote, %warp, 4, %remote;
  @%leads st.shared::cluster.b32 [%remote], %all;
$sync

  // The end of the group of the expert of this lane, and its place: the first in this warp's segment.
  ld.shared.b32 %place, [%own];
  mad.lo.u32 %column, %lane, 4, %table;
  mov.b32 %same, 0;
  mov.b32 %below, 0;
$add
  mov.b32 %sum, %same;
$scan
  add.u32 %sum, %sum, %below;
  sub.u32 %x, %sum, %same;
  add.u32 %place, %place, %x;
  add.u32 %x, %first, %lane;
  setp.eq.u32 %valid, %rank, 0;
  setp.lt.and.u32 %valid, %thread, $range, %valid;
  setp.lt.and.u32 %valid, %x, %experts, %valid;
  mul.wide.u32 %to, %x, 4;
  add.u64 %to, %to, %offsets;
  @%valid st.global.b32 [%to], %sum;

  // Give the ids their places, in order.
  mov.b32 %at, %from;
  mov.b64 %address, %start;
PLACE:
  setp.ge.u32 %done, %at, %end;
  @%done bra PLACED;
$read
$place
  bra PLACE;
PLACED:
  ret;
}
""")

_READ = Template("""\
  add.u32 %index$i, %at, %lane;
  add.u32 %index$i, %index$i, $offset;
  setp.lt.u32 %inside$i, %index$i, %end;
  @%inside$i ld.global.$load, [%address + $bytes];""")

_NEXT = Template("""\
  add.u32 %at, %at, $ahead;
  add.u64 %address, %address, $bytes;""")

_WHOLE = Template("""\
  setp.eq.u32 %valid, %high$i, 0;
  selp.b32 %id$i, %id$i, -1, %valid;""")
"""Lets ids of 64 bits that do not fit in 32 count as negative."""

_MATCH = Template("""\
  min.u32 %id$i, %id$i, %experts;
  sub.u32 %local$i, %id$i, %first;
  setp.lt.and.u32 %mine$i, %local$i, $range, %inside$i;
  vote.sync.ballot.b32 %mask$i, %mine$i, 0xffffffff;""")
"""Leaves in ``%mask`` the lanes whose ids are those of the expert of this lane: with the ballots of :data:`_PLANE`."""

_PLANE = Template("""\
  and.b32 %bits, %local$i, $bit;
  setp.eq.u32 %zero, %bits, 0;
  vote.sync.ballot.b32 %bits, %zero, 0xffffffff;
  xor.b32 %bits, %bits, %flip$b;
  and.b32 %mask$i, %mask$i, %bits;""")

_FLIP = Template("""\
  and.b32 %bits, %lane, $bit;
  setp.eq.u32 %zero, %bits, 0;
  selp.b32 %flip$b, 0, -1, %zero;""")

_COUNT = Template("""\
  setp.lt.and.u32 %less, %id$i, %first, %inside$i;
  @%less add.u32 %below, %below, 1;
  popc.b32 %x, %mask$i;
  add.u32 %same, %same, %x;""")

_PLACE = Template("""\
  shfl.sync.idx.b32 %x, %mask$i, %local$i, 31, 0xffffffff;
  and.b32 %x, %x, %lower;
  popc.b32 %x, %x;
  shfl.sync.idx.b32 %sum, %place, %local$i, 31, 0xffffffff;
  add.u32 %sum, %sum, %x;
  add.u32 %token, %index$i, %index$i;
  mul.hi.u32 %token, %token, %factor;
  shr.u32 %token, %token, %shift;
  mul.wide.u32 %to, %sum, 4;
  add.u64 %to, %to, %rows;
  @%mine$i st.global.b32 [%to], %token;
  setp.lt.u32 %valid, %id$i, %experts;
  selp.b32 %sum, %sum, -1, %valid;
  mul.wide.u32 %to, %index$i, 4;
  add.u64 %to, %to, %places;
  @%mine$i st.global.b32 [%to], %sum;
  popc.b32 %x, %mask$i;
  add.u32 %place, %place, %x;""")

_STOP = Template("""\
  add.u32 %x, %at, $next;
  setp.ge.u32 %done, %x, %end;
  @%done bra $label;""")

_SCAN = Template("""\
  shfl.sync.up.b32 %x|%has, %sum, $distance, 0, 0xffffffff;
  @%has add.u32 %sum, %sum, %x;""")
"""Adds to ``%sum`` those of the lanes before this one."""

_ADD = Template("""\
  ld.shared.b32 %x, [%column + $at];
  add.u32 %same, %same, %x;
  setp.gt.u32 %has, %rank, $cta;
  @%has add.u32 %place, %place, %x;
  ld.shared.b32 %x, [%table + $below];
  add.u32 %below, %below, %x;""")


def clusters(experts: int) -> int:
    """Clusters for some experts and the slots to skip."""
    return experts // RANGE + 1


def cluster_for(count: int) -> int:
    """CTAs of a cluster for a number of ids: one where each of its warps reads ids only once."""
    return 1 if count <= WARPS * STEP else CLUSTER


def segment_for(count: int) -> int:
    """Ids of a warp: what it reads at once or a multiple. In a cluster of one CTA, where every warp counts, it may stop
    after any 32."""
    ctas = cluster_for(count)
    return align_up(-(-count // (ctas * WARPS)), STEP if ctas > 1 else 32)


def division(slots: int) -> tuple[int, int]:
    """The factor and the shift that divide an index below 2^31: ``index // slots == 2 * index * factor >> 32 + shift``,
    since the factor exceeds 2^(31 + shift) / slots by less than 2^shift / slots."""
    shift = (slots - 1).bit_length()
    return -(-(1 << 31 + shift) // slots), shift


def emit_routing(step: int, ctas: int) -> str:
    """The PTX of the kernel for ids that are ``step`` bytes apart and clusters of ``ctas`` CTAs, for sm_90 and later,
    where the kernels of groups run. Its parameters are :data:`JOB`; CTAs have :data:`THREADS` threads."""

    def per_load(*emit: Callable[[int], str]) -> str:
        return "\n".join(each(i) for i in range(_LOADS) for each in emit)

    def read(i: int) -> str:
        load = f"b32 %id{i}" if step == 4 else f"v2.b32 {{%id{i}, %high{i}}}"
        return _READ.substitute(i=i, offset=32 * i, bytes=32 * i * step, load=load)

    def match(i: int) -> str:
        planes = (_PLANE.substitute(i=i, b=b, bit=1 << b) for b in _BITS)
        whole = (_WHOLE.substitute(i=i),) if step == 8 else ()
        return "\n".join((*whole, _MATCH.substitute(i=i, range=RANGE), *planes))

    def then(template: Template) -> Callable[[int], str]:
        return lambda i: template.substitute(i=i)

    def unless_done(label: str) -> Callable[[int], str]:
        stops = ctas == 1
        return lambda i: _STOP.substitute(label=label, next=32 * (i + 1)) if stops and i + 1 < _LOADS else ""

    arrive, wait = (f"  barrier.cluster.{what}.aligned;" for what in ("arrive", "wait"))
    following = _NEXT.substitute(ahead=STEP, bytes=STEP * step)
    adds = (_ADD.substitute(cta=cta, at=cta * _ROW, below=cta * _ROW + _ROW - 4) for cta in range(ctas))
    cluster = f".reqnctapercluster {ctas}\n" if ctas > 1 else ""
    return head(ENTRY, JOB, THREADS, cluster) + _KERNEL.substitute(
        threads=THREADS,
        arrive=arrive if ctas > 1 else "",
        wait=wait if ctas > 1 else "",
        sync=f"{arrive}\n{wait}" if ctas > 1 else "  bar.sync 0;",
        shared=(WARPS + ctas) * _ROW,
        table=WARPS * _ROW,
        row=_ROW,
        last=_ROW - 4,
        step=step,
        loads=_LOADS,
        planes=len(_BITS),
        range=RANGE,
        warps=WARPS,
        ctas=ctas,
        flips="\n".join(_FLIP.substitute(b=b, bit=1 << b) for b in _BITS),
        read=per_load(read),
        count=per_load(match, then(_COUNT), unless_done("COUNTED")) + "\n" + following,
        place=per_load(match, then(_PLACE), unless_done("PLACED")) + "\n" + following,
        scan="\n".join(_SCAN.substitute(distance=1 << b) for b in _BITS),
        add="\n".join(adds),
    )
