"""The kernel that copies misaligned operands to aligned memory, as PTX.

The driver compiles the PTX on the target machine, because machines that run packs have no NVRTC; otherwise every WGMMA
kernel would have to contain the copy kernel.

A thread copies two vectors of 16 bytes. It assembles each from two aligned vectors by funnel shifts, and reads only
vectors that contain bytes of the operand. The bytes after the end of a row are copied with its last vector: rows of the
copy are whole lines, and TMA reads only the extents of the operand.

A launch performs up to :data:`JOBS` copies, each with its own CTAs, as described by :data:`JOB`.
"""

from __future__ import annotations

import struct
from string import Template

from gemmill.emitters.ptx import FIRST_VECTOR, choose_job, head, lines

ENTRY = "gemmill_copies"
"""Symbol of the kernel."""
JOBS = 3
"""Most copies of a launch: A, B and C."""
JOB = struct.Struct("<QQqQqQIIII")
"""The parameters of a copy: addresses of the operand and of its copy; bytes between rows of the operand and of the
copy; bytes between matrices of the operand; bytes of a row; total number of rows, rows of a matrix, vectors of a row;
index of its first CTA. A copy without rows has no CTAs."""
JOBS_LAYOUT = struct.Struct(f"<{JOBS * JOB.size}s")
"""The parameter of the kernel."""
THREADS = 128
"""Threads of a CTA."""
VECTOR = 16
"""Bytes of a vector, which one instruction loads or stores."""
_VECTORS = "ab"
"""The suffixes of register names for the two vectors of a thread."""
BLOCK = THREADS * len(_VECTORS)
"""Vectors of a CTA."""

_BODY = Template("""\
  .reg .pred %later;
  .reg .b32 %block, %begin, %thread, %row, %first, %left, %x;
  .reg .b32 %all, %rows, %vectors;
  .reg .b64 %job, %from, %to, %stride, %copied, %matrix, %bytes, %y, %z;
$registers
  // The copy that this CTA has a part in.
$choose
  ld.param.b64 %from, [%job];
  ld.param.b64 %to, [%job + 8];
  ld.param.b64 %stride, [%job + 16];
  ld.param.b64 %copied, [%job + 24];
  ld.param.b64 %matrix, [%job + 32];
  ld.param.b64 %bytes, [%job + 40];
  ld.param.b32 %all, [%job + 48];
  ld.param.b32 %rows, [%job + 52];
  ld.param.b32 %vectors, [%job + 56];
  ld.param.b32 %begin, [%job + 60];

$first
$locate
$overlap
$load
$store
  ret;
}
""")

_REGISTERS = Template("""\
  .reg .pred %inside$i, %two$i, %eight$i, %four$i;
  .reg .b32 %row$i, %vector$i, %shift$i, %u$i<8>, %v$i<6>, %w$i<5>;
  .reg .b64 %at$i, %into$i;""")

_LOCATE = Template("""\
  // Vector $i: where it lies, the aligned vector that it begins in, and whether it goes on into the next.
  add.u32 %vector$i, %first, $ahead;
  div.u32 %row$i, %vector$i, %vectors;
  mul.lo.u32 %x, %row$i, %vectors;
  sub.u32 %vector$i, %vector$i, %x;
  add.u32 %row$i, %row$i, %row;
  setp.lt.u32 %inside$i, %row$i, %all;
  mul.wide.u32 %z, %vector$i, 16;
  cvt.u64.u32 %y, %row$i;
  mad.lo.u64 %y, %y, %copied, %to;
  add.u64 %into$i, %y, %z;
  div.u32 %x, %row$i, %rows;
  mul.lo.u32 %left, %x, %rows;
  sub.u32 %row$i, %row$i, %left;
  cvt.u64.u32 %at$i, %x;
  mad.lo.u64 %at$i, %at$i, %matrix, %from;
  add.u64 %at$i, %at$i, %z;
  cvt.u64.u32 %y, %row$i;
  mad.lo.u64 %at$i, %y, %stride, %at$i;
  cvt.u32.u64 %shift$i, %at$i;
  and.b32 %shift$i, %shift$i, 15;
  and.b64 %at$i, %at$i, -16;
  sub.u64 %y, %bytes, %z;
  min.u64 %y, %y, 16;
  cvt.u32.u64 %left, %y;
  add.u32 %left, %left, %shift$i;
  setp.gt.and.u32 %two$i, %left, 16, %inside$i;""")

_OVERLAP = """\
  // The next kernel may be set up meanwhile; what the one before writes, or reads of the copies, is waited for.
  griddepcontrol.launch_dependents;
  griddepcontrol.wait;"""

_LOAD = Template("""\
  @%inside$i ld.global.v4.b32 {%u${i}0, %u${i}1, %u${i}2, %u${i}3}, [%at$i];
  @%two$i ld.global.v4.b32 {%u${i}4, %u${i}5, %u${i}6, %u${i}7}, [%at$i + 16];""")


def _store(i: str) -> str:
    """The code that aligns a vector by shifts of 8 bytes, 4 bytes and bits, and stores it."""
    code = [f"and.b32 %x, %shift{i}, 8;", f"setp.ne.u32 %eight{i}, %x, 0;"]
    code += [f"and.b32 %x, %shift{i}, 4;", f"setp.ne.u32 %four{i}, %x, 0;", f"shl.b32 %shift{i}, %shift{i}, 3;"]
    code += [f"selp.b32 %v{i}{word}, %u{i}{word + 2}, %u{i}{word}, %eight{i};" for word in range(6)]
    code += [f"selp.b32 %w{i}{word}, %v{i}{word + 1}, %v{i}{word}, %four{i};" for word in range(5)]
    code += [f"shf.r.wrap.b32 %u{i}{word}, %w{i}{word}, %w{i}{word + 1}, %shift{i};" for word in range(4)]
    code += [f"@%inside{i} st.global.v4.b32 [%into{i}], {{%u{i}0, %u{i}1, %u{i}2, %u{i}3}};"]
    return lines(code)


def emit_copies(overlaps: bool) -> str:
    """The PTX of the kernel. Its parameters are :data:`JOBS` times :data:`JOB`.

    CTAs have :data:`THREADS` threads and copy :data:`BLOCK` vectors. With ``overlaps`` the kernel is for sm_90 and
    later and uses programmatic dependent launch: it can start before the previous kernel of the stream ends. Otherwise
    it is for sm_70 and later.
    """

    def per_vector(template: Template) -> str:
        return "\n".join(template.substitute(i=i, ahead=place * THREADS) for place, i in enumerate(_VECTORS))

    start = head(ENTRY, JOBS_LAYOUT, THREADS, target="sm_90" if overlaps else "sm_70")
    return start + _BODY.substitute(
        registers=per_vector(_REGISTERS),
        choose=choose_job(JOB, JOBS),
        first=FIRST_VECTOR.substitute(block=BLOCK),
        locate=per_vector(_LOCATE),
        overlap=_OVERLAP if overlaps else "",
        load=per_vector(_LOAD),
        store="\n".join(map(_store, _VECTORS)),
    )
