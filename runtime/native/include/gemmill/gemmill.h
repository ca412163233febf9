/// libgemmill: opens packs of compiled GEMM kernels and launches them, without Python. It needs the CUDA driver alone.
///
/// All functions may be called from several threads at a time, except that nothing may use a pack or plan while it is
/// closed or destroyed. None throws. Those that can fail return a status; gemmill_last_error() then has a sentence that
/// names the thing, the value, the rule and the way out.
#pragma once

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define GEMMILL_API __attribute__((visibility("default")))
#else
#define GEMMILL_API
#endif

/// The structs of DLPack, with its ABI. A program that uses dlpack.h includes it before this header.
#ifndef DLPACK_VERSION
#ifndef DLPACK_MAJOR_VERSION
#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1,
  kDLCUDA = 2,
  kDLCUDAManaged = 13,
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

typedef enum {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLFloat8_e4m3fn = 10,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e8m0fnu = 14,
  kDLFloat4_e2m1fn = 17,
} DLDataTypeCode;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

/// Memory of a tensor. Strides are in elements; NULL for contiguous rows.
typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// What a function reports.
typedef enum {
  GEMMILL_OK = 0,
  /// An argument has an invalid value, or a tensor a wrong device, dtype, shape, stride or address.
  GEMMILL_OPERAND = 1,
  /// No kernel supports the problem, or this library does not support the kernel.
  GEMMILL_UNSUPPORTED = 2,
  /// A pack is missing or damaged, or lacks a kernel.
  GEMMILL_PACK = 3,
  /// A pack is not signed by a trusted key.
  GEMMILL_TRUST = 4,
  /// The driver is missing or refuses a call.
  GEMMILL_DEVICE = 5,
  /// A step does not work while the stream is captured into a CUDA graph.
  GEMMILL_CAPTURE = 6,
  /// Host memory is exhausted, or an error of this library.
  GEMMILL_INTERNAL = 7,
} gemmill_status;

/// The message of the last failed call of this thread; valid until its next failed call. Empty before the first.
GEMMILL_API const char* gemmill_last_error(void);

/// Version of the library, such as "0.1.0".
GEMMILL_API const char* gemmill_version(void);

/// An opened pack: compiled kernels in one file.
typedef struct gemmill_pack gemmill_pack;

/// Opens a pack and reads its index. Kernels are read when they are used.
///
/// `trusted_keys`: public keys ("ed25519:...") and absolute paths of files of keys, separated by commas, one of which
/// must have signed the pack in PATH.sig. NULL: those of the environment variable GEMMILL_TRUSTED_KEYS; without it, no
/// signature is checked.
///
/// GEMMILL_PACK: the file is missing, not a pack of this version, or damaged. GEMMILL_TRUST: it is not signed by these
/// keys.
GEMMILL_API gemmill_status gemmill_pack_open(const char* path, const char* trusted_keys, gemmill_pack** pack);

/// Closes a pack. Its plans stay valid. NULL does nothing.
GEMMILL_API void gemmill_pack_close(gemmill_pack* pack);

/// How many kernels a pack has.
GEMMILL_API size_t gemmill_pack_size(const gemmill_pack* pack);

/// The name of a kernel by its place in the pack; NULL beyond the last. Valid until the pack is closed.
GEMMILL_API const char* gemmill_pack_kernel(const gemmill_pack* pack, size_t place);

/// Reads every kernel and checks its checksum and launch facts. GEMMILL_PACK names the first damaged kernel.
GEMMILL_API gemmill_status gemmill_pack_check(const gemmill_pack* pack);

/// Bits of gemmill_gemm.flags.
enum {
  /// Multiply f32 as tf32, on tensor cores.
  GEMMILL_TF32 = 1,
  /// Sum products of fp8 in the tensor core alone, with fewer bits.
  GEMMILL_FAST_ACCUMULATION = 2,
};

/// An operand of an epilogue: a tensor, or a number where the epilogue has a scalar.
typedef struct {
  const char* name;
  const DLTensor* tensor;  ///< NULL for a number.
  double value;
} gemmill_argument;

/// D = alpha A B + beta C, or what an epilogue computes. All tensors are in the memory of one GPU; set the members that
/// are not named to 0.
///
/// A is (M, K), B (K, N), C and D (M, N), with any strides; with a third, first extent they are batches of matrices. A
/// and B that lack it, or have 1 there, are shared by the batch; C broadcasts to D. C may be D.
///
/// Elements of e2m1 have 4 bits and one lane; extents and strides count elements, two of which share a byte along K.
typedef struct {
  const DLTensor* a;
  const DLTensor* b;
  const DLTensor* c;  ///< NULL without C.
  const DLTensor* d;
  double alpha;  ///< 1 for a plain product. With 0, A and B are not read.
  double beta;   ///< 0 without C.
  uint32_t flags;
  int32_t slices;      ///< Slices of K of a split-K kernel that `kernel` names; 0 for other kernels.
  const char* kernel;  ///< Name of a kernel of the pack; NULL: the one that its choice table picks.
  /// Scales of blocks: f32 (M, K / 128) for A and (K / 128, N / 128) for B, quotients rounded up; or those of an e2m1
  /// operand alone, ue8m0: (K / 32, N) for B, (M, K / 32) for A. For scales of rows, columns or whole operands, use
  /// alpha or an epilogue.
  const DLTensor* a_scale;
  const DLTensor* b_scale;
  /// s32 (groups,): where each group of rows ends. A is (M, K), B (groups, K, N), D (M, N).
  const DLTensor* offsets;
  /// s32 (groups,): rows in use. A is (groups, capacity, K), B (groups, K, N), D (groups, capacity, N).
  const DLTensor* counts;
  int64_t expected_rows;  ///< Rows in use of a group with counts, on average, for the choice table; 0: it assumes some.
  /// An expression such as "d = silu(acc + bias[n])", in the spelling of a kernel; NULL: alpha and beta alone.
  const char* epilogue;
  const gemmill_argument* arguments;  ///< The operands of the epilogue, in any order.
  size_t argument_count;
} gemmill_gemm;

/// A prepared launch for operands of one layout: its kernel is loaded, and its parameters are encoded.
typedef struct gemmill_plan gemmill_plan;

/// Makes a plan. The tensors must be valid for a launch, but launches may have other addresses, with the alignments
/// that the kernel needs.
///
/// GEMMILL_OPERAND, GEMMILL_UNSUPPORTED, GEMMILL_PACK, GEMMILL_DEVICE or, where a stream capture prevents that the
/// kernel is loaded, GEMMILL_CAPTURE: the message says what to change.
GEMMILL_API gemmill_status gemmill_plan_create(const gemmill_pack* pack, const gemmill_gemm* gemm, gemmill_plan** plan);

/// Launches on a stream (CUstream; NULL: the legacy default stream), on the first elements of A, B, C and D. `c` is
/// NULL without C. Scales, groups and arguments are those of the plan.
///
/// `workspace`: memory of gemmill_plan_workspace bytes, at a multiple of 256, that no other launch uses at the same
/// time. NULL: the library's own, one for each stream, which grows and is never freed; a stream that is captured into a
/// graph needs the caller's.
GEMMILL_API gemmill_status gemmill_plan_launch(gemmill_plan* plan, void* stream, void* workspace, const void* a,
                                               const void* b, const void* c, void* d);

/// The same at the addresses of a product that has the layouts and the order of arguments of the plan's, which are not
/// compared.
GEMMILL_API gemmill_status gemmill_plan_launch_gemm(gemmill_plan* plan, void* stream, void* workspace,
                                                    const gemmill_gemm* gemm);

/// Bytes of workspace that a launch needs; 0 for most kernels.
GEMMILL_API size_t gemmill_plan_workspace(const gemmill_plan* plan);

/// Name of the kernel of a plan; empty where D is empty, so that nothing is launched. Valid while the plan is.
GEMMILL_API const char* gemmill_plan_kernel(const gemmill_plan* plan);

/// Destroys a plan; running launches finish. NULL does nothing.
GEMMILL_API void gemmill_plan_destroy(gemmill_plan* plan);

/// Launches a product on a stream. Up to 1024 plans are kept with the pack, so that a repeated call is only a launch.
/// A kernel with a workspace uses the library's, so that a captured stream needs a plan instead (GEMMILL_CAPTURE).
GEMMILL_API gemmill_status gemmill_matmul(gemmill_pack* pack, const gemmill_gemm* gemm, void* stream);

#ifdef __cplusplus
}
#endif
