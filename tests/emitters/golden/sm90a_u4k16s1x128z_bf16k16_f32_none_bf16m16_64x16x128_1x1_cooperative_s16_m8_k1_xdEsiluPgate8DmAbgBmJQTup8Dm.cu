#include <gemmill/kernel/tma_wgmma.cuh>

// bf16 D = u4 A x bf16 B, accumulated in f32
struct Atom {
  using Register = float;
  static constexpr int kRegisters = 8;
  static constexpr int kK = 16;

  __device__ static void multiply(uint32_t const (&a)[4], uint64_t b, Register (&d)[kRegisters], bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, p, 1, 1, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
  }
};

// d = silu(gate8.m + bg[m]) * up8.m
struct Epilogue : gemmill::NoMatrices {
  using Compute = float;
  static constexpr bool kIsExpression = true;
  static constexpr bool kIsPartial = false;
  static constexpr bool kGated = false, kGatesHalves = false;
  static constexpr int kGateColumns = 0, kGateRows = 8, kScaledColumns = 0;
  static constexpr int kTotals = 0, kRowTotals = 0, kColumnTotals = 0;
  static constexpr int kReductions = kTotals + kRowTotals + kColumnTotals;
  static constexpr bool kAddresses = false;
  __device__ static constexpr gemmill::Reduce reduce(int i) { return gemmill::Reduce::Sum; }

  struct Params {
    Compute alpha, beta;
    gemmill::Values<float const> bg_;
  };
  struct Uniform {};
  struct Row { Compute bg_; };
  struct Column {};
  struct Element {};
  struct Extras {};

  Params const& params;

  __device__ explicit Epilogue(Params const& params_) : params(params_) {}
  __device__ bool needs_c() const { return false; }
  __device__ Uniform uniform(int batch) const { return {}; }
  __device__ Row row(int m, int batch) const { return {gemmill::load<Compute>(params.bg_, m, batch)}; }
  __device__ Column column(int n, int batch) const { return {}; }
  __device__ void columns(int n0, int n1, int end, int batch, Column& first, Column& second) const {}
  __device__ Element element(int m, int n, int batch) const { return {}; }
  __device__ void elements(int m, int n0, int n1, int end, int batch, Element& first, Element& second) const {}
  __device__ void touch(int m, int rows, int m_end, int n, int columns, int n_end, int batch, int thread) const {
    gemmill::touch(params.bg_, m, rows, m_end, batch, thread);
  }
  __device__ void store(Extras const& extras, int m, int n, int batch) const {}
  __device__ void store_two(Extras const& first, Extras const& second, int m, int n0, int n1, int end,
                            int batch) const {}

  __device__ Compute compute(Compute gate, Compute up, Compute c, Uniform const& uniform, Row const& row, Column const& column,
                             Element const& element, Extras& extras) const {
    using namespace gemmill;
    Compute const d_ = math::mul(math::silu(math::add(gate, row.bg_)), up);
    return d_;
  }
  __device__ Compute operator()(Compute accumulator, Compute c, int m, int n, int batch) const {
    return gemmill::evaluate(*this, accumulator, c, m, n, batch);
  }
};
static_assert(sizeof(Epilogue::Params) == 24, "the host lays out the same members, without padding");
struct Config {
  using A = gemmill::u4;
  using B = gemmill::bf16;
  using C = gemmill::None;
  using D = gemmill::bf16;
  using Scale = gemmill::None;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::K;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::M;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::M;

  static constexpr int kTileM = 64, kTileN = 16, kTileK = 128;
  static constexpr int kClusterM = 1, kClusterN = 1;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::Cooperative;
  static constexpr int kConsumers = 4;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 104;
  static constexpr bool kPromote = false;
  static constexpr int kGroup = 128;
  static constexpr bool kZeros = true;
  static constexpr int kStages = 16, kSubtileN = 16, kBuffersC = 0, kBuffersD = 2;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::M;
  static constexpr int kSwizzle = 8;
  template <class Order, int TileK>
  using Scheduler = gemmill::PersistentScheduler<Order, TileK>;

  using Atom = ::Atom;
  using Terms = gemmill::OneTerm;
  using Epilogue = ::Epilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

extern "C" __constant__ gemmill::KernelSpec gemmill_sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_1x1_cooperative_s16_m8_k1_xdEsiluPgate8DmAbgBmJQTup8Dm_spec = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
gemmill_sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_1x1_cooperative_s16_m8_k1_xdEsiluPgate8DmAbgBmJQTup8Dm(__grid_constant__ Kernel::Params const params) {
  Kernel::run(params);
}
